"""%distribute up: cells run one after the other on ranks that stay, with their variables."""

import threading
import time
from contextlib import contextmanager

import nbformat
import pytest
import torch

from minicluster.client.connection import ServiceError
from minicluster.options import OptionWrong
from minicluster.sessions.session import CellInterrupted, SessionCellError
from minicluster.wire import JobState

from ...patience import until

CELL = "%%distribute\nimport torch, time, torch.distributed as dist\n"


@contextmanager
def session_of(notebook, service, line):
    notebook.run(line)
    opened = notebook.shell.magics_manager.registry["Distribute"]._session
    try:
        yield opened
    finally:
        job = service.stop(opened.job.id)
        until(lambda: service.job(job.id).state.terminal)


@pytest.fixture
def session(notebook, service):
    with session_of(notebook, service, "%distribute up --nodes 3") as opened:
        yield opened


@pytest.fixture
def balanced(notebook, service):
    with session_of(notebook, service, "%distribute up --nodes 3 --balance") as opened:
        notebook.run(BALANCED)
        yield opened


def interrupt_next_cell(service, job, *, after_s):
    number = service.newest_cell(job).number + 1

    def interrupt():
        until(lambda: service.newest_cell(job).number == number)
        time.sleep(after_s)
        service.interrupt_cell(job, number)

    threading.Thread(target=interrupt).start()


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
    interrupt_next_cell(service, session.job.id, after_s=1.5)
    began = time.monotonic()
    with pytest.raises(CellInterrupted):
        notebook.run(
            "%%distribute\nif dist.get_rank() == 0: dist.barrier()\nfor _ in range(1000): time.sleep(0.1)"
        )
    assert time.monotonic() - began < 60
    notebook.run("%%distribute --pull kept\ndist.barrier()")
    assert notebook.names["kept"] == 7


BALANCED = """%%distribute
import time, torch, minicluster as mc
from torch import nn
data = torch.utils.data.TensorDataset(torch.arange(240.0)[:, None].expand(-1, 4) / 240)
model = nn.Linear(4, 1)
model, optimizer, loader = mc.prepare(
    model,
    torch.optim.SGD(model.parameters(), lr=0.01),
    torch.utils.data.DataLoader(data, batch_size=8, shuffle=True),
)
def train(passes):
    sizes, seen = [], []
    for _ in range(passes):
        for batch, in loader:
            time.sleep(len(batch) * (0.004 if mc.rank() else 0.002))
            optimizer.zero_grad()
            model(batch).square().mean().backward()
            optimizer.step()
            sizes.append(len(batch))
            seen += (batch[:, 0] * 240).round().int().tolist()
    return sizes, seen
"""


TRAINS_TWICE = """%%distribute --pull own,all,seen
own, mine = train(2)
all = torch.tensor(own)
torch.distributed.all_reduce(all)
told = [None] * 3
torch.distributed.all_gather_object(told, mine)
seen = sorted(sum(told, []))
"""
TWICE = sorted([*range(240)] * 2)


def test_ranks_of_different_speed_agree_after_an_interrupt(balanced, notebook, service):
    interrupt_next_cell(service, balanced.job.id, after_s=3)
    with pytest.raises(CellInterrupted):
        notebook.run("%%distribute\ntrain(1000)")
    notebook.run(TRAINS_TWICE)
    assert notebook.names["all"].tolist() == [24] * 20
    assert notebook.names["seen"] == TWICE
    assert notebook.names["own"][-1] > 8


# As an interrupt may leave them: rank 1 does not learn what the others do, and rank 2 is in another epoch.
LEAVES_THEM_APART = """%%distribute
from minicluster.train.balance.shares import Shares
learn = Shares.learn
def leave(shares, measured):
    if not all(one.sample_s for one in measured):
        return learn(shares, measured)
    Shares.learn = learn
    raise ValueError("left")
if mc.rank() == 1:
    Shares.learn = leave
if mc.rank() == 2:
    next(iter(loader))
train(100)
"""


@pytest.mark.parametrize("restarts", [False, True], ids=["", "the job service restarts"])
def test_ranks_that_a_failed_cell_left_apart_take_the_same_steps_again(balanced, notebook, cluster, restarts):
    notebook.fails(LEAVES_THEM_APART, SessionCellError)
    if restarts:
        cluster.kill()
        cluster.start()
    notebook.run(TRAINS_TWICE)
    assert notebook.names["all"].tolist() == [24] * 20
    assert notebook.names["seen"] == TWICE


def test_down_ends_it_and_cells_run_as_before(session, notebook, service):
    notebook.run("%distribute down")
    until(lambda: service.job(session.job.id).state is JobState.STOPPED)
    notebook.run("%%distribute --nodes 1\nplain = 1")
    assert notebook.names["plain"] == 1


def test_idle_ranks_are_not_killed_at_the_end(session, notebook, service, tmp_path):
    notebook.names["folder"] = tmp_path
    notebook.run("%%distribute\nimport atexit, os\natexit.register((folder / os.environ['RANK']).touch)")
    notebook.run("%distribute down")
    until(lambda: service.job(session.job.id).state is JobState.STOPPED)
    assert sorted(path.name for path in tmp_path.glob("?")) == ["0", "1", "2"]


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


def test_what_the_notebook_changed_is_sent_again(session, notebook):
    notebook.run("settings, factor = {'rate': 1}, 2")
    notebook.run("%%distribute --pull seen\nfactor *= 10\nseen = settings['rate'], factor")
    assert notebook.names["seen"] == (1, 20)
    notebook.run("settings['rate'] = 5")
    notebook.run("%%distribute --pull seen\nseen = settings['rate'], factor")
    assert notebook.names["seen"] == (5, 20), "changed in place; the ranks' factor is theirs"
    notebook.run("factor = 2")
    notebook.run("%%distribute --pull seen\nseen = factor")
    assert notebook.names["seen"] == 2, "assigned again, if to the same value"


def test_a_longer_cell_is_shown_while_it_runs(session, notebook, capsys):
    source = "import time, minicluster as mc\nprint('begins', flush=True)\n"
    source += "for step in range(20):\n    mc.log(step=step, loss=1 / (1 + step))\n    time.sleep(0.05)\n"
    notebook.run(f"%%distribute --plain\n{source}42 + 1")
    shown = capsys.readouterr().out
    assert "Running on 3 ranks" in shown and "Succeeded" in shown
    assert shown.count("begins") == 1 and "43" in shown
    notebook.run("%%distribute\nprint('short')")
    assert capsys.readouterr().out == "short\n"


def test_a_killed_rank_ends_the_session_and_says_so(session, notebook, service):
    notebook.run("%%distribute\nkept = 7")
    with pytest.raises(SessionCellError) as raised:
        notebook.run(
            "%%distribute\nimport os, signal, time\ntime.sleep(1)\nos.kill(os.getpid(), signal.SIGKILL)"
        )
    assert "SIGKILL" in str(raised.value)
    until(lambda: service.job(session.job.id).state is JobState.FAILED)
    error = notebook.fails("%%distribute\nkept += 1", ServiceError)
    assert "failed" in str(error) and "%distribute up" in error.hint


def test_up_again_ends_the_former_session(session, notebook, service):
    notebook.run("%distribute up --nodes 2")
    until(lambda: service.job(session.job.id).state is JobState.STOPPED)
    notebook.run("%%distribute --pull ranks\nimport torch.distributed as dist\nranks = dist.get_world_size()")
    assert notebook.names["ranks"] == 2
    notebook.run("%distribute down")


def test_ranks_out_of_step_are_named_and_go_on_together(session, notebook):
    notebook.run(f"{CELL}rank, one = dist.get_rank(), torch.ones(1)")
    error = notebook.fails(
        "%%distribute\nif rank == 0: left = dist.all_reduce(one, async_op=True)", SessionCellError
    )
    assert "1 on rank 0" in str(error) and "0 on ranks 1, 2" in str(error)
    notebook.run("%%distribute --pull total\ntotal = torch.ones(1)\ndist.all_reduce(total)")
    assert notebook.names["total"].item() == 3


def test_a_job_service_that_restarts_loses_no_cell(session, notebook, cluster):
    notebook.run("%%distribute\nkept = 7")

    def restart():
        cluster.kill()
        cluster.start()

    threading.Timer(1.5, restart).start()
    notebook.run("%%distribute --plain --pull seen\nimport time\ntime.sleep(3)\nseen = kept + 1")
    assert notebook.names["seen"] == 8


def test_the_example_notebook_runs_from_top_to_bottom(notebook, tree, capsys):
    cells = nbformat.read(tree / "notebooks" / "fast_hands.ipynb", 4).cells
    for cell in cells:
        if cell.cell_type == "code":
            notebook.run(cell.source)
    shown = capsys.readouterr().out
    assert "rank 0 of 3 has 599 digits" in shown and "Session" in shown
    assert notebook.names["accuracy"] > 0.9
    assert "Memory of a rank at its peak" in shown
    assert "--comm auto: A step computes for" in shown


TRAINING = """
import minicluster as mc
rank = dist.get_rank()
torch.manual_seed(0)
net = torch.nn.Linear(2, 1)
model, optimizer = mc.prepare(net, torch.optim.SGD(net.parameters(), lr=0.1))
def step():
    loss = model(torch.full((4, 2), rank + 1.0)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
# Rank 1 leaves after its step, when the others wait for it in their next one.
BREAKING = """
step()
if rank == 1:
    net.bias.data += 1
    raise ValueError("after a step")
step()
"""
GATHERING = """
step()
flat = torch.cat([one.detach().flatten() for one in net.parameters()])
weights = [torch.zeros_like(flat) for _ in range(3)]
dist.all_gather(weights, flat)
"""


def test_a_model_goes_on_after_a_cell_that_broke_a_step(session, notebook, capsys):
    notebook.run(f"{CELL}{TRAINING}")
    error = notebook.fails(f"%%distribute{BREAKING}", SessionCellError)
    assert "after a step" in str(error)
    capsys.readouterr()
    notebook.run(f"%%distribute --pull weights{GATHERING}")
    assert "weights of model differed" in capsys.readouterr().out
    first, *others = notebook.names["weights"]
    assert all(torch.equal(first, other) for other in others)


BROKEN_WITHIN = """%%distribute
from torch.nn.parallel import DistributedDataParallel
def leave(state, bucket):
    if dist.get_rank() == 1 and not state:
        state.append(1)
        raise ValueError("within a step")
    done = torch.futures.Future()
    done.set_result(bucket.buffer())
    return done
hooked = DistributedDataParallel(torch.nn.Linear(4, 1))
hooked.register_comm_hook([], leave)
hooked(torch.ones(2, 4)).sum().backward()
"""


def test_a_model_goes_on_after_a_cell_that_ended_within_a_step(session, notebook):
    notebook.run(f"{CELL}{TRAINING}")
    error = notebook.fails(BROKEN_WITHIN, SessionCellError)
    assert "within a step" in str(error), "all have begun the same collectives"
    notebook.run("%%distribute --pull found\nhooked(torch.ones(2, 4)).sum().backward()\nfound = 1")
    assert notebook.names["found"] == 1


@pytest.mark.parametrize(
    ("line", "flag"), [("--detach", "--detach"), ("--nodes 2", "--nodes"), ("--gather a", "--gather")]
)
def test_a_cell_takes_no_options_of_its_session(session, notebook, line, flag):
    error = notebook.fails(f"%%distribute {line}\na = 1", OptionWrong)
    assert f"{flag} is no option of it" in str(error) and "%distribute down" in error.hint


def test_up_takes_no_options_of_a_single_cell(notebook):
    error = notebook.fails("%distribute up --fault-tolerant", OptionWrong)
    assert "--fault-tolerant" in str(error)
