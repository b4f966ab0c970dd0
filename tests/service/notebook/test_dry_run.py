"""`%%distribute --dry-run`: virtual ranks in a real process, beside a real service that queues nothing."""

import os
import signal
import threading
import time

import psutil
import pytest

from minicluster.capture.cell import CellSyntaxError
from minicluster.dry_run import run
from minicluster.dry_run.measured import Ended
from minicluster.dry_run.run import DryRunError
from minicluster.options import OptionWrong
from minicluster.pickling.pickling import NotPicklable

MODEL = """
import torch, minicluster as mc
from torch.utils.data import DataLoader, TensorDataset
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
optimizer = torch.optim.Adam(model.parameters())
loader = DataLoader(TensorDataset(torch.randn(600, 64), torch.randn(600, 1)), batch_size=10)
"""
TRAIN = """
model, optimizer, loader = mc.prepare(model, optimizer, loader)
while True:
    for x, y in loader:
        loss = torch.nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""


@pytest.fixture(autouse=True)
def short(monkeypatch):
    monkeypatch.setattr(run, "TIMING_S", 0.5)


def virtual_ranks():
    return [one for one in psutil.Process().children(recursive=True) if _is_virtual(one)]


def _is_virtual(process):
    try:
        return "minicluster.dry_run" in process.cmdline()
    except psutil.NoSuchProcess:  # It ended meanwhile, or its parent has not read its exit status yet.
        return False


def test_a_training_is_predicted_and_nothing_is_queued(notebook, service):
    before = len(service.jobs())
    notebook.run(MODEL)
    weights = notebook.names["model"][0].weight.clone()
    found = notebook.run(f"%%distribute --dry-run --nodes 3{TRAIN}")
    assert [(one.rank, one.ended) for one in found.findings] == [(rank, Ended.STEPS) for rank in range(3)]
    assert found.findings[0].epoch.shared and found.findings[0].epoch.samples == 600
    shown = repr(found)
    for part in (
        "nothing was queued",
        "localsgd",
        "step, 3 nodes",
        "epoch, 3 nodes",
        "a guess",
        "It would start now.",
    ):
        assert part in shown
    parameters = (64 * 64 + 64 + 64 + 1) * 4
    sizes = found.findings[0].sizes
    assert (sizes.weights, sizes.gradients) == (parameters, parameters)
    assert 2 * parameters <= sizes.optimizer <= 2 * parameters + 100
    assert "localsgd" in found._repr_html_()
    assert len(service.jobs()) == before
    assert (notebook.names["model"][0].weight == weights).all(), "the notebook keeps its objects"
    assert not notebook.names["optimizer"].state
    assert not virtual_ranks()


def test_an_error_of_one_rank_is_raised_with_its_line(notebook):
    error = notebook.fails(
        "%%distribute --dry-run --nodes 3\nimport torch, minicluster as mc\nif mc.rank() == 1:\n"
        "    torch.zeros(2, 3) @ torch.zeros(2, 3)",
        DryRunError,
    )
    shown = "\n".join(error._render_traceback_())
    assert shown.startswith("DryRunError: Rank 1: RuntimeError: mat1 and mat2 shapes cannot be multiplied")
    assert "line 4, in <module>" in shown and "torch.zeros(2, 3) @ torch.zeros(2, 3)" in shown
    assert "minicluster" not in shown, "frames of the runtime do not help"


def test_a_cell_that_cannot_be_traced_is_no_error(notebook):
    found = notebook.run(
        "%%distribute --dry-run --nodes 2\nfrom torch.utils import _python_dispatch\n"
        "assert _python_dispatch._get_current_dispatch_mode() is None"
    )
    assert [one.ended for one in found.findings] == [Ended.CELL, Ended.CELL]


def test_a_missing_name_is_found(notebook):
    error = notebook.fails("%%distribute --dry-run --nodes 2\nmissing + 1", DryRunError)
    assert error.error.rank == 0 and "name 'missing' is not defined" in error.message


def test_what_no_rank_could_get_is_found_as_for_a_run(notebook):
    notebook.run("import threading\nlock = threading.Lock()")
    notebook.fails("%%distribute --dry-run --nodes 2\nlock.acquire()", NotPicklable)
    notebook.fails("%%distribute --dry-run --nodes 2\nx = (", CellSyntaxError)


def test_a_cell_without_an_optimizer_runs_to_its_end(notebook, capsys):
    found = notebook.run("%%distribute --dry-run --nodes 2\nimport os\nprint('I am', os.environ['RANK'])")
    assert [one.ended for one in found.findings] == [Ended.CELL, Ended.CELL]
    out = capsys.readouterr().out
    assert "I am 0" in out and "I am 1" in out
    assert "made too few optimizer steps" in repr(found)


def test_an_endless_cell_ends_by_the_limit(notebook, monkeypatch):
    monkeypatch.setattr(run, "LIMIT_S", 2.0)
    found = notebook.run("%%distribute --dry-run --nodes 2\nimport time\nwhile True:\n    time.sleep(0.1)")
    assert found.findings[0].ended is Ended.LIMIT
    assert "It was at line 4 of the cell." in repr(found)


def test_a_cell_that_no_signal_reaches_ends_by_the_limit(notebook, monkeypatch):
    monkeypatch.setattr(run, "LIMIT_S", 1.0)
    found = notebook.run(
        "%%distribute --dry-run --nodes 2\nimport signal\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})\nwhile True:\n    pass"
    )
    assert found.findings[0].ended is Ended.LIMIT


def test_an_interrupt_ends_the_virtual_ranks(notebook):
    def interrupt():
        while not any(len(one.children()) for one in virtual_ranks()):
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    notebook.fails("%%distribute --dry-run --nodes 2\nimport time\ntime.sleep(600)", KeyboardInterrupt)
    thread.join()
    assert not virtual_ranks()


def test_scripts_and_the_cells_own_groups(notebook, tmp_path):
    (tmp_path / "train.py").write_text(
        "import sys, torch, torch.distributed as dist\n"
        "from torch.nn.parallel import DistributedDataParallel as DDP\n"
        "dist.init_process_group('gloo')\n"
        "said = [sys.argv[1]]\ndist.broadcast_object_list(said, src=0)\n"
        "both = [None] * 2\ndist.all_gather_object(both, said[0])\n"
        "assert both == ['x', 'x'] and dist.get_backend() == 'gloo'\n"
        "model = DDP(torch.nn.Linear(4, 4))\nopt = torch.optim.SGD(model.parameters(), 0.1)\n"
        "group = dist.new_group([0, 1])\ndist.barrier(group)\n"
        "model(torch.ones(2, 4)).sum().backward()\nopt.step()\n"
    )
    found = notebook.run("%distribute run --dry-run --nodes 2 train.py x")
    assert [(one.ended, one.steps) for one in found.findings] == [(Ended.CELL, 1)] * 2


OTHER_WAYS = pytest.mark.full("the gate has auto, which tries several")


@pytest.mark.parametrize(
    "comm", ["auto", *(pytest.param(one, marks=OTHER_WAYS) for one in ("localsgd:period=2", "bf16", "async"))]
)
def test_a_way_to_communicate_is_followed(notebook, comm):
    notebook.run(MODEL)
    found = notebook.run(f"%%distribute --dry-run --link 2.5 --nodes 2 --comm {comm}{TRAIN}")
    assert found.findings[0].ended is Ended.STEPS
    assert "network of 2.5 Gbit/s:" in repr(found)


def with_strategy(strategy):
    return TRAIN.replace("loader)", f'loader, strategy="{strategy}")', 1)


@pytest.mark.parametrize("strategy", ["localsgd", "async"])
def test_a_strategy_of_whole_models_is_timed(notebook, strategy):
    notebook.run(MODEL)
    found = notebook.run(f"%%distribute --dry-run --nodes 2{with_strategy(strategy)}")
    assert [one.ended for one in found.findings] == [Ended.STEPS] * 2


def test_a_strategy_that_divides_is_refused(notebook):
    notebook.run(MODEL)
    error = notebook.fails(f"%%distribute --dry-run --nodes 2{with_strategy('fsdp')}", DryRunError)
    assert "--dry-run has one real rank, so nothing can be divided" in error.message


def test_data_sets_are_not_here(notebook):
    error = notebook.fails(
        "%%distribute --dry-run --nodes 2 --data mnist\nimport minicluster as mc\nmc.data('mnist')",
        DryRunError,
    )
    assert "A dry run has no data sets" in error.hint


def test_without_a_cluster_all_but_the_start_is_predicted(notebook, tmp_path, monkeypatch):
    monkeypatch.delenv("JUPYTERHUB_API_TOKEN")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("MINICLUSTER_URL")
    notebook.run(MODEL)
    found = notebook.run(f"%%distribute --dry-run --nodes 2{TRAIN}")
    assert found.findings[0].ended is Ended.STEPS
    assert "When it would start is not known. This notebook is not connected" in repr(found)


def test_a_job_that_would_be_refused_says_so(notebook):
    found = notebook.run("%%distribute --dry-run --nodes 7\n1")
    assert "The cluster would refuse this job: the job needs 7 nodes" in repr(found)


def test_the_link_is_for_dry_runs_only(notebook):
    notebook.fails("%%distribute --link 1\n1", OptionWrong)
