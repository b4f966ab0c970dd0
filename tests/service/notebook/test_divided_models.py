"""A notebook's model is divided by a cell on real ranks, comes back whole, and trains on in the next."""

import nbformat
import pytest
import torch

PREPARED = """
import torch
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
weight, start = model[0].weight, model[0].weight.detach().clone()
x = torch.randn(12, 8)
losses = []
"""
TRAINS = """%%distribute --nodes 2 --plain
import minicluster as mc
trained, optimizer = mc.prepare(model, optimizer, strategy="{strategy}"{more})
own = slice(6 * mc.rank(), 6 * mc.rank() + 6) if "{strategy}" == "fsdp" else slice(12)
truth = x.sum(dim=1, keepdim=True)
for _ in range(3):
    optimizer.zero_grad()
    if "{strategy}" == "pipeline":
        loss = trained.step(x[own], truth[own], nn.functional.mse_loss)
    else:
        loss = nn.functional.mse_loss(trained(x[own]), truth[own])
        loss.backward()
    optimizer.step()
    losses.append(loss.item())
"""
CELLS = {
    "fsdp": TRAINS.format(strategy="fsdp", more=""),
    "tensor": TRAINS.format(strategy="tensor", more=", plan={'0': 'column', '2': 'row'}"),
    "pipeline": TRAINS.format(strategy="pipeline", more=""),
}


@pytest.mark.parametrize(
    "strategy",
    ["fsdp", pytest.param("tensor", marks=pytest.mark.full("the gate has it in tests/runtime")), "pipeline"],
)
def test_the_notebooks_own_model_is_the_trained_one(notebook, strategy):
    notebook.run(PREPARED)
    names = notebook.names
    for cells in (1, 2):
        notebook.run(CELLS[strategy])
        model, optimizer, weight = names["model"], names["optimizer"], names["weight"]
        assert names["trained"] is model
        assert model[0].weight is weight
        assert type(model[0]) is torch.nn.Linear
        assert optimizer.param_groups[0]["params"][0] is weight
        assert optimizer.state[weight]["exp_avg"].shape == weight.shape
        assert float(optimizer.state[weight]["step"]) == 3 * cells
        assert len(names["losses"]) == 3 * cells
    assert not torch.equal(weight, names["start"])
    truth = names["x"].sum(dim=1, keepdim=True)
    assert float((model(names["x"]) - truth).square().mean()) < names["losses"][0]


def test_a_session_keeps_its_parts_and_says_how_to_get_the_whole(notebook, service, capsys):
    from minicluster.wire import JobState

    notebook.run("%distribute up --nodes 2")
    opened = notebook.shell.magics_manager.registry["Distribute"]._session
    try:
        notebook.run(PREPARED)
        notebook.run(CELLS["fsdp"].replace(" --nodes 2", ""))
        notebook.run("%%distribute\nprint(type(model).__name__)\nstate = mc.gather(model)")
        assert "FSDPSequential" in capsys.readouterr().out
        notebook.run("%distribute pull state")
        assert notebook.names["state"]["0.weight"].shape == (16, 8)
        notebook.run("%distribute pull model")
        assert "mc.gather(model)" in "".join(capsys.readouterr())
    finally:
        assert service.stop(opened.job.id).state in (JobState.STOPPING, JobState.STOPPED)


@pytest.mark.full("a minute of cells; the gate has each strategy alone")
def test_the_example_notebook_runs_from_top_to_bottom(notebook, tree, capsys):
    cells = nbformat.read(tree / "notebooks" / "large_models.ipynb", 4).cells
    for cell in cells:
        if cell.cell_type == "code":
            notebook.run(cell.source)
    shown = capsys.readouterr().out
    assert "what was gathered is the notebook's model: True" in shown
    losses = notebook.names["losses"]
    assert losses[-1] < losses[0] - 1.5
