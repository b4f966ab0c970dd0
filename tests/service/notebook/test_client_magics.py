"""`%%distribute` from the cell to the returned names, with the real service and real ranks."""

import os
import signal
import threading
import time

import pytest

from minicluster.client.connection import ServiceError
from minicluster.display.failures import DistributedCellError, JobStopped
from minicluster.display.follow import Follower
from minicluster.display.tables import JobHandle
from minicluster.display.view import RunView
from minicluster.interrupts import RunningKernel, StopRequests
from minicluster.options import OptionWrong
from minicluster.pickling.pickling import NotPicklable
from minicluster.results.results import ResultNotReadable, check_owner
from minicluster.wire import JobState

from ...patience import until


def test_names_travel_and_results_come_back(notebook):
    notebook.run(
        "scale = 10\nclass Box:\n    def __init__(self, n): self.n = n\ndef grow(n): return n * scale"
    )
    value = notebook.run(
        "%%distribute --nodes 3\n"
        "import torch, torch.distributed as dist\n"
        "t = torch.ones(1) * (dist.get_rank() + 1)\ndist.all_reduce(t)\n"
        "box = Box(grow(int(t)))\nbox.n + 1"
    )
    assert value == 61
    assert isinstance(notebook.names["box"], notebook.names["Box"])
    assert notebook.names["dist"].__name__ == "torch.distributed"


def test_pull_chooses_and_what_stays_is_listed(notebook, capsys):
    notebook.run("%%distribute --nodes 1\nimport threading\nlock = threading.Lock()\nfine = 1")
    assert "Left on the ranks: lock" in capsys.readouterr().out
    notebook.run("%%distribute --nodes 1 --pull a,ghost\na = 1\nb = 2")
    assert notebook.names["a"] == 1
    assert "b" not in notebook.names
    assert "ghost" in capsys.readouterr().out


def test_a_failing_rank_raises_with_the_cells_own_line(notebook):
    error = notebook.fails(
        "%%distribute --nodes 2\nimport os\nif os.environ['RANK'] == '1':\n    int('nope')\n"
        "import time; time.sleep(60)",
        DistributedCellError,
    )
    shown = "\n".join(error._render_traceback_())
    assert "Rank 1 on node-" in shown
    assert "line 4" in shown
    assert "int('nope')" in shown
    assert f"%distribute logs {error.job.id} --rank 1" in shown


def test_the_cells_line_numbers_and_name_are_the_notebooks(notebook):
    error = notebook.fails("%%distribute --nodes 1\n\n1 / 0", DistributedCellError)
    number = notebook.shell.displayhook.prompt_count
    assert f'"Cell In[{number}]", line 3' in error.job.error.traceback


@pytest.mark.parametrize(
    ("cell", "kind"),
    [
        ("%%distribute --nodez 3\n1", OptionWrong),
        ("%%distribute\nlist(gen)", NotPicklable),
        ("%distribute down", OptionWrong),
    ],
)
def test_what_is_refused_starts_nothing(notebook, service, cell, kind):
    notebook.run("gen = (i for i in range(3))")
    before = [job.id for job in service.jobs(1)]
    notebook.fails(cell, kind)
    assert [job.id for job in service.jobs(1)] == before


def interrupted_when(seen):
    """Interrupt this process once `seen()` is true, or at a timeout, so that the cell always ends."""

    def interrupt():
        try:
            until(seen)
        finally:
            os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()


def test_an_interrupt_stops_all_ranks_and_the_shell_lives_on(notebook, service, capsys):
    handler = signal.getsignal(signal.SIGINT)

    def has_said():
        mine = (job.id for job in service.jobs(1) if job.name == "to-stop")
        return any("here" in service.log(job, 0, 1000)[0] for job in mine)

    interrupted_when(has_said)
    source = (
        "%%distribute --nodes 2 --name to-stop\nimport time\n"
        "print('here', flush=True)\nwhile True: time.sleep(0.1)"
    )
    error = notebook.fails(source, JobStopped)
    job = service.jobs(1)[0]
    assert job.state is JobState.STOPPED
    assert error._render_traceback_() == [f"Stopped: {error.message}"]
    assert signal.getsignal(signal.SIGINT) == handler
    capsys.readouterr()
    notebook.run(f"%distribute logs {job.id}")
    assert "here" in capsys.readouterr().out
    assert notebook.run("%%distribute --nodes 1\n1 + 1") == 2


def test_detached_jobs_are_attached_later(notebook, capsys):
    handle = notebook.run(
        "%%distribute --nodes 1 --detach --name later\n"
        "for i in range(3): print('line', i)\nmade = 7\nmade * 2"
    )
    assert isinstance(handle, JobHandle)
    assert f"%distribute attach {handle.id}" in repr(handle)
    capsys.readouterr()
    assert notebook.run(f"%distribute attach {handle.id}") == 14
    assert "line 0\nline 1\nline 2\n" in capsys.readouterr().out
    del notebook.names["made"]
    capsys.readouterr()
    assert notebook.run(f"%distribute result {handle.id}") == 14
    out = capsys.readouterr().out
    assert f"From job {handle.id}: " in out and "made (int)" in out
    assert notebook.names["made"] == 7
    table = notebook.run("%distribute status")
    assert "later" in repr(table)
    assert "<td" in table._repr_html_()
    assert "node-3" in repr(notebook.run("%distribute nodes"))
    with pytest.raises(ServiceError, match="started without a GPU"):
        notebook.run("%distribute gpus")


def test_stop_by_command(notebook, service):
    handle = notebook.run("%%distribute --nodes 1 --detach\nimport time; time.sleep(600)")
    notebook.run(f"%distribute stop {handle.id}")
    notebook.fails(f"%distribute attach {handle.id}", JobStopped)
    assert service.job(handle.id).state is JobState.STOPPED


def test_modules_beside_the_notebook_travel(notebook, tmp_path):
    (tmp_path / "beside_me.py").write_text("def act(x): return x + 40\n")
    assert notebook.run("%%distribute --nodes 2\nimport beside_me\nbeside_me.act(2)") == 42


def test_anothers_result_is_not_opened(service):
    job = service.jobs(1)[0]
    check_owner(job, "ada")
    for me in ("bob", ""):
        with pytest.raises(ResultNotReadable, match="belongs to 'ada'"):
            check_owner(job, me)


class CountingScreen:
    def __init__(self):
        self.times = []
        self.changes = []

    def show(self, view, now):
        self.times.append(time.monotonic())
        self.changes.append(view.change(now))

    def end(self, view, now):
        self.changes.append(view.change(now))


@pytest.mark.full("it measures")
def test_a_flood_of_output_stays_at_twenty_updates_a_second(notebook, service):
    source = "%%distribute --nodes 3 --detach\nfor i in range(5000): print('line', i)"
    handle = notebook.run(source)
    screen = CountingScreen()
    view = RunView(handle.job, "log")
    follower = Follower(service, view, StopRequests(RunningKernel(notebook.shell)))
    assert follower.run(screen).state is JobState.SUCCEEDED
    for at in screen.times:
        assert sum(at <= other < at + 1 for other in screen.times) <= 20
    for rank in range(3):
        assert view.tails[rank].lines()[-1] == "line 4999"
        assert len(view.tails[rank].lines()) <= 200
