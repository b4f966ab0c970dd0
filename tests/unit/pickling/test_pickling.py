"""Objects sent to a rank, in another process as in real use, and back."""

from __future__ import annotations

import json
import pickle
import sys
from pathlib import Path
from typing import Any

import pytest

from minicluster.changes.returning import ReturnRequest
from minicluster.pickling.pickling import NotPicklable, dumps, loads

from ..changes.two_sides import Notebook, came_back


@pytest.fixture
def notebook(tmp_path: Path) -> Notebook:
    return Notebook(tmp_path)


def test_functions_travel_with_what_they_use_recursively(notebook: Notebook) -> None:
    notebook.cell(
        "import math\nfactor = 3\ndef inner(x): return math.floor(x) * factor\n"
        "def outer(x): return inner(x) + 1"
    )
    notebook.distribute("answer = outer(2.5)", "outer")
    assert notebook.names["answer"] == 7


def test_a_function_may_use_modules_that_torch_makes_of_classes_of_its_own(notebook: Notebook) -> None:
    pytest.importorskip("torch")
    notebook.cell(
        "import torch\ndef tune(data):\n    torch.backends.cudnn.benchmark = True\n"
        "    return len(data.classes), torch.ops.aten.neg(torch.ones(1)).item()"
    )
    notebook.distribute("class Data:\n    classes = 'ab'\nfound = tune(Data)", "tune", pull=["found"])
    assert notebook.names["found"] == (2, -1.0)


def test_a_function_sees_the_global_that_the_cell_assigns_anew(notebook: Notebook) -> None:
    notebook.cell("rate = 1\ndef current(): return rate")
    notebook.distribute("rate = 5\nanswer = current()", "current")
    assert notebook.names["answer"] == 5


def test_functions_that_come_back_use_the_notebooks_globals_and_change_none(notebook: Notebook) -> None:
    notebook.cell("scale = 2\nkeep = [1]")
    builtins_before = notebook.names["__builtins__"]
    notebook.distribute("keep = [9]\ndef made(x):\n    return x * scale + len(keep)", "scale", pull=["made"])
    assert notebook.names["keep"] == [1]
    assert notebook.names["__builtins__"] is builtins_before
    notebook.names["scale"] = 10
    assert notebook.names["made"](1) == 11


def test_a_helper_of_the_cell_comes_along_with_the_function_that_was_pulled(notebook: Notebook) -> None:
    notebook.distribute("def helper(): return 4\ndef made(): return helper()", "", pull=["made"])
    assert notebook.names["made"]() == 4


def test_what_is_at_home_does_not_travel_back(notebook: Notebook) -> None:
    notebook.cell("data = b'x' * 1_000_000\nclass Model:\n    def size(self): return len(data)\n")
    notebook.distribute("model = Model()", "Model")
    assert notebook.result.stat().st_size < 10_000
    assert notebook.names["model"].size() == 1_000_000


def test_classes_of_the_notebook_keep_their_identity(notebook: Notebook) -> None:
    notebook.cell(
        "import enum, dataclasses\nclass Color(enum.Enum):\n    RED = 1\n"
        "@dataclasses.dataclass\nclass Point:\n    x: int = 0\n    kind: str = 'a'\n"
        "class Child(Point):\n    def up(self): return super().__repr__()\nmethod = Child.up"
    )
    notebook.distribute("p, c, r = Point(3), Child(4), Color.RED", "Point Child Color")
    names = notebook.names
    assert type(names["p"]) is names["Point"]
    assert isinstance(names["c"], names["Point"])
    assert names["r"] is names["Color"].RED
    assert names["Child"].up is names["method"]
    assert names["c"].up() == "Child(x=4, kind='a')"


def test_classes_of_the_cell_come_back_whole(notebook: Notebook) -> None:
    notebook.distribute(
        "class New:\n    def __init__(self): self.n = 1\n    def more(self): return self.n + 1\nnew = New()",
        "",
    )
    assert notebook.names["new"].more() == 2
    assert type(notebook.names["new"]) is notebook.names["New"]


def test_model_and_optimizer_stay_tied_and_views_stay_views(notebook: Notebook) -> None:
    torch = pytest.importorskip("torch")
    notebook.cell(
        "import torch\nmodel = torch.nn.Linear(3, 1)\nopt = torch.optim.Adam(model.parameters())\n"
        "whole = torch.zeros(6)\npart = whole[2:4]\n"
        "half = torch.zeros(2, dtype=torch.bfloat16)\nempty = torch.empty(0, 3)"
    )
    notebook.distribute(
        "assert opt.param_groups[0]['params'][0] is model.weight\n"
        "model(torch.ones(2, 3)).sum().backward()\nopt.step()\npart += 1\nhalf = half + 2\nempty = empty\n"
        "same = (model, opt, whole, part, half)",
        "torch model opt whole part half empty",
        pull=["same", "model", "opt", "part", "whole", "half", "empty"],
    )
    names = notebook.names
    assert names["opt"].param_groups[0]["params"][0] is names["model"].weight
    assert names["whole"].tolist() == [0, 0, 1, 1, 0, 0]
    names["part"].fill_(7)
    assert names["whole"].tolist() == [0, 0, 7, 7, 0, 0]
    assert names["half"].dtype is torch.bfloat16
    assert names["empty"].shape == (0, 3)
    names["part"].resize_(100)


def test_large_tensors_and_arrays_travel_unchanged() -> None:
    torch = pytest.importorskip("torch")
    numpy = pytest.importorskip("numpy")
    names = {"tensor": torch.arange(300_000), "array": numpy.arange(300_000), "bytes": bytes(300_000)}
    back = loads(dumps(names, {}, "The names"), {})
    assert torch.equal(back["tensor"], names["tensor"])
    assert numpy.array_equal(back["array"], names["array"])
    assert back["bytes"] == names["bytes"]
    with pytest.raises(NotPicklable, match=r"`tensor` \(torch.Tensor, 2.4 MB\) is too large"):
        dumps(names, {}, "The names", 1_000_000)


def test_modules_come_by_import_and_a_missing_one_costs_nothing_else(notebook: Notebook) -> None:
    result = notebook.distribute(
        "import json as j, types\nghost = types.ModuleType('ghost_of_the_rank')\nx = 1",
        "",
        pull=["j", "ghost", "x"],
    )
    assert notebook.names["j"] is json
    assert notebook.names["x"] == 1
    assert "ghost" not in notebook.names
    assert "ghost_of_the_rank" in result.left_behind[0].reason


def test_what_cannot_come_back_is_listed_and_the_rest_arrives(notebook: Notebook) -> None:
    result = notebook.distribute(
        "import threading\nlock = threading.Lock()\ndef f():\n    return lock\n"
        "good = [1]\nbig = bytes(3_000_000)\n(x for x in good)",
        "",
        pull=["lock", "good", "big", "f"],
        limit=2_000_000,
    )
    assert notebook.names["good"] == [1]
    assert callable(notebook.names["f"])
    assert [item.name for item in result.left_behind] == ["lock", "big", "value of the last expression"]
    assert "2 MB" in result.left_behind[1].reason


def test_the_namespace_is_needed_to_read() -> None:
    namespace: dict[str, Any] = {}
    exec("def f(): return 1", namespace)
    with pytest.raises(pickle.UnpicklingError, match="loads only"):
        pickle.loads(dumps({"f": namespace["f"]}, namespace, "The names"))


def test_standard_output_stays_the_readers_own() -> None:
    assert loads(dumps({"out": sys.stdout}, {}, "The names"), {})["out"] is sys.stdout


def test_nothing_is_an_empty_pickle() -> None:
    assert loads(b"", {}) == {}
    assert came_back({"a": 1}, ReturnRequest(["missing"])) == ({}, {}, [])


def test_ddp_comes_back_as_its_module() -> None:
    pytest.importorskip("torch")
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        wrapped = DistributedDataParallel(__import__("torch").nn.Linear(2, 1))
        names, value, left = came_back(
            {"m": wrapped, "g": dist.group.WORLD}, ReturnRequest(["m", "g"], wrapped)
        )
    finally:
        dist.destroy_process_group()
    assert type(names["m"]).__name__ == "Linear"
    assert type(value["_"]).__name__ == "Linear"
    assert [item.name for item in left] == ["g"]
