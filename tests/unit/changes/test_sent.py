"""The objects that a notebook sent with a cell serve only the result of that cell's job."""

import shutil

from minicluster.capture.payload import CellPayload
from minicluster.cell_run import RunContext, fetch_result, identity_of

from ..display.test_render import job
from .two_sides import Notebook as Sides


class Service:
    """A fake service of a given cluster, with one job's cell and result."""

    user = "ada"

    def __init__(self, sides, source):
        self._sides, self._source = sides, source

    def download_result(self, job_id, file):
        with self._sides.result.open("rb") as result:
            shutil.copyfileobj(result, file)

    def cell(self, job_id):
        names, shared = ((self._sides.folder / name).read_bytes() for name in ("names", "shared"))
        return CellPayload(self._source, "Cell In[1]", names, shared).to_bytes()


def test_another_clusters_job_of_the_same_number_does_not_change_what_was_sent_here(tmp_path):
    here, there = (job(id=7, created_at=at) for at in (1.0, 2.0))
    sides, source = Sides(tmp_path), "mine.append(2)"
    sides.cell("mine, alias = [1], None")
    sent = sides.send(source, "mine")
    # The user's other cluster has a job with this number and another cell.
    sides.cell("alias = mine\nmine = [10]")
    sides.send(source, "mine")
    sides.cell("mine = alias")
    more = {"hidden": str.isspace, "limits": None, "tail_lines": 1, "kernel": None, "make_screen": None}
    notebook = RunContext(Service(sides, source), sides.names, sent={identity_of(here): sent}, **more)
    result = fetch_result(there, notebook)
    result.put(sides.names, sides.names.update)
    assert sides.names["alias"] == [1]
    assert sides.names["mine"] == [10, 2]
    assert notebook.sent == {identity_of(here): sent}
