"""A cell's in-place changes are applied to the notebook's own objects."""

from __future__ import annotations

from pathlib import Path

import pytest

from minicluster.changes.applying import ResultConflict

from ... import messages
from .two_sides import Notebook, in_one_process


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


def test_one_name_that_cannot_be_made_costs_no_other(notebook: Notebook) -> None:
    pytest.importorskip("torch")
    notebook.cell(
        "import os\nclass Picky:\n    def __setstate__(self, state):\n"
        "        if 'IS_NOTEBOOK' in os.environ:\n            raise ValueError('not here')\n"
    )
    with pytest.MonkeyPatch.context() as patch:
        sent = notebook.send(
            "import torch\nclass Two(Exception):\n    def __init__(self, a, b): super().__init__(a)\n"
            "error = Two('x', 'y')\neight = torch.ones(4).to(torch.float8_e4m3fn)\n"
            "picky = Picky()\npicky.a = 1\nfirst = [1]\nsecond = {'first': first}",
            "Picky",
        )
        patch.setenv("IS_NOTEBOOK", "yes")
        result = notebook.read(sent)
    result.put(notebook.names, notebook.names.update)
    names = notebook.names
    assert type(names["error"]) is names["Two"]
    assert names["error"].args == ("x",)
    assert names["eight"].float().tolist() == [1, 1, 1, 1]
    assert names["second"]["first"] is names["first"]
    assert "picky" not in names
    assert "ValueError: not here" in result.summary()


KINDS = """
import collections, dataclasses, functools, io, random
from array import array
class Plain: pass
class Slots: __slots__ = ("a",)
@dataclasses.dataclass
class Data:
    values: list = dataclasses.field(default_factory=list)
class Config:
    rate = 1
def make():
    n = 0
    def inc():
        nonlocal n
        n += 1
    return inc, lambda: n
inc, get = make()
counter = 0
def count():
    global counter
    counter += 1
def stats(x=[]): pass
plain, slots, data = Plain(), Slots(), Data()
plain.a, slots.a = [1], 1
plain.me = plain
queue, ordered = collections.deque([1]), collections.OrderedDict(a=1, b=2)
counts, groups = collections.Counter("ab"), collections.defaultdict(list)
some, raw, numbers = {1}, bytearray(b"a"), array("i", [1])
rng, stream = random.Random(1), io.BytesIO(b"abc")
shared = []
holds = {"x": shared, "y": (shared, 1)}
"""
CHANGES = """
plain.a.append(2); plain.b = plain
slots.a = 2; data.values.append(3); Config.rate = 2; inc(); count()
stats.calls = 1; stats.__defaults__[0].append(1)
queue.append(2); ordered.move_to_end("a"); counts["a"] += 1; groups["k"].append(1)
some.add(2); raw += b"b"; numbers.append(2)
drawn = [rng.random() for _ in range(2)]; stream.read(1)
shared.append(9)
"""


def test_all_kinds_of_objects_are_changed_in_place(notebook: Notebook) -> None:
    notebook.cell(KINDS)
    names = notebook.names
    wanted = (
        "plain slots data Config inc get count stats queue ordered counts groups some raw numbers rng stream "
        "shared holds"
    )
    own = {name: names[name] for name in wanted.split()}
    result = notebook.distribute(CHANGES, wanted + " counter")
    assert result.summary() == ""
    assert all(names[name] is it for name, it in own.items())
    assert names["plain"].a == [1, 2]
    assert names["plain"].b is names["plain"]
    assert (names["slots"].a, names["data"].values, names["Config"].rate) == (2, [3], 2)
    assert (names["get"](), names["counter"], names["stats"].calls) == (1, 1, 1)
    assert names["stats"].__defaults__ == ([1],)
    assert (list(names["queue"]), list(names["ordered"])) == ([1, 2], ["b", "a"])
    assert (names["counts"]["a"], dict(names["groups"]), names["some"]) == (2, {"k": [1]}, {1, 2})
    assert (names["raw"], list(names["numbers"])) == (b"ab", [1, 2])
    assert names["rng"].random() not in names["drawn"]
    assert names["stream"].read() == b"bc"
    assert names["holds"]["x"] is names["holds"]["y"][0] is names["shared"]
    assert names["shared"] == [9]


def test_what_cannot_come_is_named_and_half_a_list_never_comes(notebook: Notebook) -> None:
    notebook.cell("class Box: pass\nbox, things, other = Box(), [1], [1]\nbox.a = 1")
    result = notebook.distribute(
        "import threading\nbox.lock, box.a = threading.Lock(), 2\nthings += [threading.Lock()]\n"
        "other.append(2)",
        "box things other",
    )
    names = notebook.names
    assert (names["box"].a, names["things"], names["other"]) == (2, [1], [1, 2])
    assert "box.lock" in result.summary()
    assert "the rest of `box` came" in result.summary()
    assert "nothing of `things` came" in result.summary()
    assert not hasattr(names["box"], "lock")


def test_a_tensor_that_was_made_larger_comes_with_its_new_storage(notebook: Notebook) -> None:
    pytest.importorskip("torch")
    notebook.cell("import torch\nlarge = torch.ones(4)\nalias = large\nhistory = []")
    notebook.distribute("large.resize_(6).fill_(3)\nhistory.append(1)", "torch large history")
    assert notebook.names["large"].tolist() == [3.0] * 6
    assert notebook.names["alias"] is notebook.names["large"]
    assert notebook.names["history"] == [1]


def test_a_grad_scaler_that_was_first_used_by_the_cell_has_its_scale(notebook: Notebook) -> None:
    pytest.importorskip("torch")
    notebook.cell("import torch\nscaler = torch.amp.GradScaler('cpu')\nalias = scaler")
    result = notebook.distribute("scaler.scale(torch.ones(1)); scaler.update(7.0)", "torch scaler")
    assert result.summary() == ""
    assert notebook.names["scaler"] is notebook.names["alias"]
    assert notebook.names["alias"].get_scale() == 7.0


def test_a_compiled_module_trains_the_plain_one(notebook: Notebook) -> None:
    pytest.importorskip("torch")
    notebook.cell(
        "import torch\nmodel = torch.nn.Linear(1, 1)\ncompiled = torch.compile(model, backend='eager')"
    )
    notebook.distribute("with torch.no_grad(): compiled.weight.fill_(3)", "torch compiled")
    assert notebook.names["model"].weight.item() == 3
    assert notebook.names["compiled"]._orig_mod is notebook.names["model"]


def test_a_view_that_may_not_be_written_to_may_not_be_on_ranks_either(notebook: Notebook) -> None:
    pytest.importorskip("numpy")
    notebook.cell("import numpy as np\nview = np.zeros(3)[:]\nview.flags.writeable = False\nsaid = []")
    notebook.distribute(
        "try:\n    view += 1\nexcept ValueError as error:\n    said.append(str(error))", "np view said"
    )
    assert "read-only" in notebook.names["said"][0]
    assert notebook.names["view"].tolist() == [0, 0, 0]


def test_a_view_that_the_cell_did_not_get_keeps_what_it_shows(notebook: Notebook) -> None:
    pytest.importorskip("torch")
    notebook.cell("import torch\nwhole = torch.zeros(4)\nview = whole[:2]")
    notebook.distribute("whole.data = torch.ones(4)", "torch whole")
    assert notebook.names["whole"].tolist() == [1, 1, 1, 1]
    assert notebook.names["view"].tolist() == [0, 0]


def test_what_is_too_large_is_named_with_what_shares_objects_with_it(notebook: Notebook) -> None:
    notebook.cell("history, seen, other = [0], {}, [1]")
    cell = "history.extend(range(100000)); seen['all'] = history; other.append(2)"
    result = notebook.distribute(cell, "history seen other", limit=10_000)
    names = notebook.names
    assert (names["history"], names["seen"], names["other"]) == ([0], {}, [1, 2])
    assert "history (list): is too large" in result.summary()
    assert "so nothing of `history`, `seen` came" in result.summary()


def test_changes_that_are_too_large_together_are_named_and_none_of_them_comes(notebook: Notebook) -> None:
    notebook.cell("first, second = [0], [1]")
    cell = "first.extend([1.5] * 700); second.extend([2.5] * 700)"
    result = notebook.distribute(cell, "first second", limit=10_000)
    assert (notebook.names["first"], notebook.names["second"]) == ([0], [1])
    for name in ("first", "second"):
        assert f"{name}: its changes are too large: 10 KB are allowed for all" in result.summary()


def test_an_error_in_the_middle_of_putting_leaves_all_as_it_was(
    notebook: Notebook, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    notebook.cell(
        "import torch, collections\nfirst, second = [1], {'a': 1}\nthird = collections.deque([1])\n"
        "class Box: pass\nbox = Box()\nbox.a = 1\nweight, raw = torch.zeros(2), bytearray(b'ab')"
    )
    sent = notebook.send(
        "first.append(2); second['b'] = first; third.append(2); box.b = 2; weight.fill_(5)\n"
        "raw += b'c'; made = 1",
        "torch first second third box weight raw",
    )
    result = notebook.read(sent)

    def push(names: dict[str, object]) -> None:
        # After the structure is applied, before the bytes of arrays and tensors.
        assert notebook.names["second"]["b"] is notebook.names["first"]
        raise MemoryError("no room")

    with pytest.raises(MemoryError):
        result.put(notebook.names, push)
    names = notebook.names
    assert (names["first"], names["second"], list(names["third"])) == ([1], {"a": 1}, [1])
    assert (vars(names["box"]), names["weight"].tolist(), names["raw"]) == ({"a": 1}, [0, 0], b"ab")
    assert "made" not in names
    result.put(names, names.update)
    assert (names["first"], names["made"], names["weight"].tolist()) == ([1, 2], 1, [5, 5])


def test_backward_through_a_graph_of_old_values_is_an_error(notebook: Notebook) -> None:
    torch = pytest.importorskip("torch")
    notebook.cell(
        "import torch\nweight = torch.ones(2, requires_grad=True)\nview = weight[:1]\n"
        "loss = (weight ** 2).sum()"
    )
    notebook.distribute("with torch.no_grad(): weight.fill_(5)", "torch weight")
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        notebook.names["loss"].backward()
    assert torch.equal(notebook.names["view"].detach(), torch.tensor([5.0]))


def test_a_result_is_put_once(notebook: Notebook) -> None:
    notebook.cell("history = [1]")
    sent = notebook.send("history.append(2)", "history")
    notebook.read(sent).put(notebook.names, notebook.names.update)
    with pytest.raises(ResultConflict, match=messages.CHANGED_HERE.format(name="history", job=17)):
        notebook.read(sent)
    assert notebook.names["history"] == [1, 2]


def test_the_second_of_two_cells_that_changed_one_model_is_a_conflict(
    notebook: Notebook, tmp_path: Path
) -> None:
    pytest.importorskip("torch")
    notebook.cell("import torch\nmodel = torch.nn.Linear(1, 1)\nlosses = []")
    cell = "with torch.no_grad(): model.weight.fill_({0})\nlosses.append({0})"
    sent = []
    for value in (1, 2):
        notebook.folder = tmp_path / str(value)
        notebook.folder.mkdir()
        sent.append(notebook.send(cell.format(value), "torch model losses"))
    notebook.folder = tmp_path / "2"
    notebook.read(sent[1]).put(notebook.names, notebook.names.update)
    notebook.folder = tmp_path / "1"
    with pytest.raises(ResultConflict, match="`losses`, `model` changed here"):
        notebook.read(sent[0])
    assert (notebook.names["model"].weight.item(), notebook.names["losses"]) == (2, [2])


def test_a_small_view_of_a_large_array_stays_one(notebook: Notebook) -> None:
    notebook.cell("np = __import__('pytest').importorskip('numpy')\nbase = np.zeros(300_000)\nx = base[:10]")
    in_one_process(notebook.names, "base[0] = 5\ny = x.sum()\nb = base[1:4]", ["x", "base"])
    assert (notebook.names["y"], notebook.names["b"].base is notebook.names["base"]) == (5, True)


def test_a_class_of_which_an_object_is_copied_meanwhile_is_no_conflict(notebook: Notebook) -> None:
    """copy.copy stores the class's slots in the class."""
    notebook.cell("import copy\nclass C: pass\nx = C()")
    sent = notebook.send("C.n = 1", "C")
    notebook.cell("y = copy.copy(x)")
    notebook.read(sent).put(notebook.names, notebook.names.update)
    assert notebook.names["C"].n == 1
