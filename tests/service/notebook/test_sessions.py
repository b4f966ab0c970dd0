"""%distribute up: cells run one after the other on ranks that stay, with their variables."""

import threading
import time

import pytest

from minicluster.sessions.session import CellInterrupted, SessionCellError
from minicluster.wire import JobState

from ...patience import until

CELL = "%%distribute\nimport torch, time, torch.distributed as dist\n"


@pytest.fixture
def session(notebook, service):
    notebook.run("%distribute up --nodes 3")
    opened = notebook.shell.magics_manager.registry["Distribute"]._session
    yield opened
    job = service.stop(opened.job.id)
    until(lambda: service.job(job.id).state.terminal)


def test_what_a_cell_makes_is_there_in_the_next_and_comes_when_it_is_pulled(session, notebook, capsys):
    notebook.run("start = 10")
    notebook.run(
        "%%distribute\nimport torch.distributed as dist\nmodel = {'weight': start + dist.get_rank()}"
    )
    assert "model" not in notebook.names, "nothing travels that was not asked for"
    notebook.run("%%distribute\nmodel['weight'] += 1\nprint(dist.get_rank(), model)")
    printed = capsys.readouterr().out
    assert "0 {'weight': 11}" in printed
    assert "[rank 2] 2 {'weight': 13}" in printed
    notebook.run("%distribute pull model")
    assert notebook.names["model"] == {"weight": 11}
    notebook.run(f"{CELL}total = torch.tensor([float(model['weight'])])\ndist.all_reduce(total)")
    notebook.run("%distribute pull total")
    assert notebook.names["total"].item() == 11 + 12 + 13


def test_large_values_travel_both_ways(session, notebook):
    notebook.run("import torch\nlarge = torch.arange(100_000)")
    notebook.run("%%distribute --pull doubled\ndoubled = large * 2")
    assert notebook.names["doubled"].tolist() == list(range(0, 200_000, 2))


def test_a_name_that_is_assigned_here_again_is_sent_again(session, notebook):
    notebook.run("factor = 2")
    notebook.run("%%distribute\nfactor = factor * 10")
    notebook.run("%%distribute --pull seen\nseen = factor")
    assert notebook.names["seen"] == 20, "the ranks' own, since the notebook's is the same as before"
    notebook.run("factor = 3")
    notebook.run("%%distribute --pull seen\nseen = factor")
    assert notebook.names["seen"] == 3


def test_an_error_leaves_the_ranks_and_what_they_have(session, notebook):
    notebook.run("%%distribute\nimport torch, torch.distributed as dist\nkept = 7")
    error = notebook.fails(
        "%%distribute\nif dist.get_rank() == 1: raise ValueError('one alone')", SessionCellError
    )
    assert "one alone" in str(error)
    assert error.error.rank == 1
    # The others wait in a collective: the group is made anew, without the processes.
    broken = "%%distribute\nif dist.get_rank() == 1: raise ValueError('in the middle')\ndist.barrier()"
    error = notebook.fails(broken, SessionCellError)
    assert "in the middle" in str(error)
    notebook.run("%%distribute --pull total\ntotal = torch.tensor([float(kept)])\ndist.all_reduce(total)")
    assert notebook.names["total"].item() == 21


def test_an_interrupt_ends_the_cell_and_keeps_the_state(session, notebook, service):
    notebook.run("%%distribute\nimport time, torch.distributed as dist\nkept = 7")
    number = session._next
    threading.Timer(1.5, lambda: service.interrupt_cell(session.job.id, number)).start()
    began = time.monotonic()
    with pytest.raises(CellInterrupted):
        notebook.run(
            "%%distribute\nif dist.get_rank() == 0: dist.barrier()\nfor _ in range(1000): time.sleep(0.1)"
        )
    assert time.monotonic() - began < 60
    notebook.run("%%distribute --pull kept\ndist.barrier()")
    assert notebook.names["kept"] == 7


def test_down_ends_it_and_cells_run_as_before(session, notebook, service):
    notebook.run("%distribute down")
    until(lambda: service.job(session.job.id).state is JobState.STOPPED)
    notebook.run("%%distribute --nodes 1\nplain = 1")
    assert notebook.names["plain"] == 1


def test_a_restarted_kernel_goes_on_with_what_the_ranks_have(session, notebook, capsys):
    notebook.run("model = 'untrained'")
    notebook.run("%%distribute\nmodel = 'trained'")
    job = session.job.id
    notebook.run("%reload_ext minicluster")
    notebook.run("model = 'made again'")
    notebook.run(f"%distribute attach {job}")
    notebook.run("%distribute whos")
    assert "model  str  'trained'" in capsys.readouterr().out
    notebook.run("%%distribute --pull seen\nseen = model")
    assert notebook.names["seen"] == "trained"
