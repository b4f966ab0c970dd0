"""What a cell changes in place comes back into the notebook's own objects."""

from __future__ import annotations

from pathlib import Path

import pytest

from .two_sides import Notebook


@pytest.fixture
def notebook(tmp_path: Path) -> Notebook:
    return Notebook(tmp_path)


def test_the_classic_script_trains_the_notebooks_own_model(notebook: Notebook) -> None:
    pytest.importorskip("torch")
    notebook.cell(
        "import torch\nfrom torch import nn\nimport numpy as np\n"
        "model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 1))\n"
        "optimizer = torch.optim.Adam(model.parameters())\n"
        "scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)\n"
        "history = []\nseen = {}\narr = np.zeros(4)\nview = arr[1:3]\n"
        "weight = model[0].weight\nbefore = weight.detach().clone()\nalias = history"
    )
    notebook.distribute(
        "model(torch.ones(2, 3)).sum().backward()\noptimizer.step()\nscheduler.step()\n"
        "history.append(1.5)\nseen['a'] = history\narr += 1\nexpected = model[0].weight.detach().clone()",
        "torch model optimizer scheduler history seen arr",
    )
    names = notebook.names
    torch = names["torch"]
    assert names["model"][0].weight is names["weight"]
    assert torch.equal(names["weight"], names["expected"])
    assert not torch.equal(names["weight"], names["before"])
    assert names["optimizer"].param_groups[0]["params"][0] is names["weight"]
    assert names["optimizer"].state[names["weight"]]["step"] == 1
    assert names["optimizer"].param_groups[0]["lr"] == 0.0005
    assert names["scheduler"].optimizer is names["optimizer"]
    assert names["alias"] == [1.5]
    assert names["seen"]["a"] is names["history"]
    assert names["arr"].tolist() == [1, 1, 1, 1]
    assert names["view"].tolist() == [1, 1]
