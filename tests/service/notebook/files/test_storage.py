"""A user with a small storage quota: refusals say why; stored items are listed and removed."""

import pytest

from minicluster.client.connection import ServiceError
from minicluster.options import OptionWrong

from .... import messages
from ..conftest import Cluster


@pytest.fixture
def cluster(tmp_path, hub_url):
    """A cluster with a quota of 20 MB per user."""
    (tmp_path / "cluster").mkdir()
    made = Cluster(tmp_path / "cluster", hub_url, "--MiniclusterHub.storage_gb=0.02")
    yield made
    made.end()


LARGE = """%%distribute --nodes 1
import os
import minicluster as mc
import torch
model = torch.nn.Linear(10, 10)
large = os.urandom(30_000_000)
(mc.output() / "large.bin").write_bytes(large)
(mc.output() / "small.txt").write_text("small")
mc.checkpoint(model, step=1, every=1, large={"zeros": torch.zeros(8_000_000)})
print("trained to its end")
"""


@pytest.mark.full("half a minute of results")
def test_a_cell_whose_results_have_no_room_runs_to_its_end_and_names_them(notebook, service):
    error = notebook.fails(LARGE, ServiceError)
    (job,) = service.jobs(1)
    assert job.state.value == "succeeded"
    assert error.message == f"Job {job.id} is succeeded: it has no result."
    refused = "more of cells and results would be over your storage quota of 20 MB"
    assert error.hint.startswith(f"{messages.RESULT_LEFT}.") and refused in error.hint
    assert "%distribute storage" in error.hint
    assert "trained to its end" in service.log(job.id, 0, 10_000)[0]
    history = service.ask("GET", f"api/jobs/{job.id}/history").json()["lines"]
    notes = [line["text"] for line in history if "storage quota" in line["text"]]
    assert [note.partition(".")[0] for note in sorted(notes)] == [
        messages.SNAPSHOT_LEFT,
        f"{messages.FILES_LEFT.format(node='node-1')}large",
        messages.RESULT_LEFT,
    ]
    assert [one.path for one in service.artifacts(job.id).artifacts] == ["small.txt"]


def test_what_is_kept_is_shown_and_removed(notebook, service, capsys):
    notebook.run("%%distribute --nodes 1 --name first\nresult = bytes(range(256)) * 50_000")
    (job,) = service.jobs(1)
    capsys.readouterr()
    table = repr(notebook.run("%distribute storage"))
    text = capsys.readouterr().out
    assert text.startswith("You keep 12.8 MB of the 20.0 MB that you may keep with the job service: cells")
    assert f"job {job.id} (first)  12.8 MB" in table
    assert f"%distribute storage rm {job.id}" in table
    notebook.run(f"%distribute storage rm {job.id}")
    assert f"The files of job {job.id} are deleted" in capsys.readouterr().out
    assert repr(notebook.run("%distribute storage")) == "Nothing is stored."
    error = notebook.fails(f"%distribute result {job.id}", ServiceError)
    assert "was removed" in error.message
    assert notebook.fails("%distribute storage rm", OptionWrong).hint.endswith("rm ID ...")
    assert "invalid int value" in notebook.fails("%distribute storage rm x", OptionWrong).message
    assert notebook.fails("%distribute storage --all", ServiceError).code == "scope_missing"
