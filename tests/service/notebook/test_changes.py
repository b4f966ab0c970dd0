"""A distributed cell's changes are applied in the notebook, with the real service and real ranks."""

import pytest

from minicluster.changes.applying import ResultConflict
from minicluster.display.failures import DistributedCellError

from ... import messages

PREPARED = """
import torch
from torch.nn.parallel import DistributedDataParallel as DDP
torch.manual_seed(0)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
losses, seen = [], {}
weight, start = model.weight, model.weight.detach().clone()
"""
TRAINS = """%%distribute --nodes 2 --plain
ddp = DDP(model)
for _ in range(3):
    optimizer.zero_grad()
    loss = (ddp(torch.ones(4, 8)) - 3).square().mean()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
seen["steps"] = len(losses)
"""


def test_the_classic_script_trains_on_in_the_next_cell(notebook):
    notebook.run(PREPARED)
    names = notebook.names
    notebook.run(TRAINS)
    torch, first = names["torch"], names["weight"].detach().clone()
    assert names["model"].weight is names["weight"]
    assert names["optimizer"].param_groups[0]["params"][0] is names["weight"]
    assert not torch.equal(first, names["start"])
    assert names["ddp"] is names["model"]
    notebook.run(TRAINS)
    assert len(names["losses"]) == 6
    assert names["losses"][3] < names["losses"][0] / 2
    assert names["optimizer"].state[names["weight"]]["step"] == 6
    assert not torch.equal(names["weight"], first)


def test_a_cell_that_failed_changes_nothing(notebook):
    notebook.run("history = [1]")
    notebook.fails("%%distribute --nodes 1 --plain\nhistory.append(2)\n1 / 0", DistributedCellError)
    assert notebook.names["history"] == [1]


def test_what_changed_here_meanwhile_is_not_overwritten_and_comes_as_a_copy(notebook):
    notebook.run("history, other = [1], {'a': 1}\nalias = history")
    job = notebook.run("%%distribute --nodes 1 --plain --detach\nhistory.append(2)\nother['b'] = history")
    notebook.run("history.append('mine')")
    error = notebook.fails(f"%distribute attach {job.id}", ResultConflict)
    assert (
        f"{messages.CHANGED_HERE.format(name='history', job=job.id)}; nothing was put back" in error.message
    )
    assert f"%distribute result {job.id} --pull history" in error.hint
    assert notebook.names["alias"] == [1, "mine"]
    assert notebook.names["other"] == {"a": 1}
    notebook.run(f"%distribute result {job.id} --pull history,other")
    assert notebook.names["history"] == [1, 2]
    assert notebook.names["other"]["b"] is notebook.names["history"]
    assert notebook.names["alias"] == [1, "mine"]


def test_after_a_restart_of_the_kernel_what_was_sent_comes_as_a_copy_with_the_changes(notebook):
    notebook.run(PREPARED)
    job = notebook.run(TRAINS.replace("--plain", "--plain --detach"))
    magics = notebook.shell.magics_manager.registry["Distribute"]
    magics._sent.clear()
    for name in ("model", "optimizer", "losses", "seen"):
        del notebook.names[name]
    notebook.run(f"%distribute attach {job.id}")
    names = notebook.names
    assert names["optimizer"].param_groups[0]["params"][0] is names["model"].weight
    assert len(names["losses"]) == names["seen"]["steps"] == 3
    assert not names["torch"].equal(names["model"].weight, names["start"])


def test_a_result_that_is_here_already_comes_as_copies_and_says_so(notebook, capsys):
    notebook.run("history = [1]\nalias = history")
    job = notebook.run("%%distribute --nodes 1 --plain --detach\nhistory.append(2)")
    notebook.run(f"%distribute attach {job.id}")
    assert notebook.names["history"] is notebook.names["alias"]
    assert notebook.names["alias"] == [1, 2]
    capsys.readouterr()
    notebook.run("history.append(3)")
    notebook.run(f"%distribute attach {job.id}")
    assert f"`history`: new objects, with what job {job.id} made of them" in capsys.readouterr().out
    assert (notebook.names["history"], notebook.names["alias"]) == ([1, 2], [1, 2, 3])


def test_the_second_of_two_detached_cells_on_one_model_is_a_conflict(notebook):
    notebook.run(PREPARED)
    cell = "%%distribute --nodes 1 --plain --detach\nwith torch.no_grad(): model.weight.fill_({0})"
    first, second = [notebook.run(cell.format(value)) for value in (1, 2)]
    notebook.run(f"%distribute attach {second.id}")
    error = notebook.fails(f"%distribute attach {first.id}", ResultConflict)
    assert (
        f"{messages.CHANGED_HERE.format(name='model', job=first.id)}; nothing was put back" in error.message
    )
    assert notebook.names["weight"].unique().tolist() == [2]


@pytest.mark.parametrize(("pull", "came"), [("losses", [0.5, 1]), ("none", [0.5])])
def test_pull_limits_what_is_changed(notebook, pull, came):
    notebook.run("losses, seen = [0.5], {}")
    notebook.run(f"%%distribute --nodes 1 --plain --pull {pull}\nlosses.append(1)\nseen['a'] = 1")
    assert notebook.names["losses"] == came
    assert notebook.names["seen"] == {}


def test_a_sharded_model_is_named_with_the_call_that_gathers_it(notebook, capsys):
    notebook.run(PREPARED)
    notebook.run(
        "%%distribute --nodes 2 --plain\n"
        "from torch.distributed.fsdp import fully_shard\n"
        "fully_shard(model)\n"
        "optimizer = torch.optim.Adam(model.parameters())\n"
        "model(torch.ones(4, 8)).sum().backward()\noptimizer.step()\nfine = 1"
    )
    text = capsys.readouterr().out
    assert notebook.names["fine"] == 1
    assert "`state = mc.gather(model)`" in text
    assert "`state, optimizer_state = mc.gather(model, optimizer)`" in text
    assert type(notebook.names["model"]).__name__ == "Linear"
    assert notebook.names["optimizer"].param_groups[0]["params"][0] is notebook.names["weight"]


def test_what_differs_between_ranks_is_told_and_gathered(notebook, capsys):
    notebook.run("losses, seen = [], [7]")
    cell = "import os\nlosses.append(int(os.environ['RANK']))\nmade = len(seen)"
    notebook.run(f"%%distribute --nodes 2 --plain\n{cell}")
    assert notebook.names["losses"] == [0]
    note = f"`losses` differs {messages.RANKS_DIFFER.format(names='losses')}"
    assert note in capsys.readouterr().out
    notebook.run(f"%%distribute --nodes 2 --plain --gather losses\n{cell}")
    assert notebook.names["losses"] == [[0, 0], [0, 1]]
    assert notebook.names["made"] == 1
    assert "between ranks" not in capsys.readouterr().out
