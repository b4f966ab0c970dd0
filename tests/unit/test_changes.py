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
