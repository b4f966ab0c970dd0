"""Digests by which ranks compare values: equal for equal values in all processes, else different."""

import os
import subprocess
import sys

import numpy
import pytest
import torch

from minicluster.changes.value_digest import value_digest

VALUES = """
import collections, dataclasses, enum, numpy, torch

class Kind(enum.Enum):
    FIRST = 1

@dataclasses.dataclass
class Trial:
    name: str
    tags: set

def function(): pass

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3))
optimizer = torch.optim.Adam(model.parameters())
model(torch.ones(2, 3)).sum().backward()
optimizer.step()
itself = [1]
itself.append(itself)
values = {
    "set": {"a", "b", "c", "d"}, "dict": {"x": [1, {"q", "r"}]}, "itself": itself,
    "trial": Trial("t", {"u", "v", "w"}),
    "enum": Kind.FIRST, "function": function, "type": Trial, "array": numpy.arange(6).reshape(2, 3).T,
    "objects": numpy.array(["a", None], dtype=object), "scalar": numpy.float32(1.5), "empty": torch.empty(0),
    "half": torch.ones(3, dtype=torch.bfloat16), "model": model, "optimizer": optimizer,
    "counts": collections.Counter("hello"), "dtype": torch.float32,
    "complex": torch.ones(2, dtype=torch.cfloat).conj(),
    "scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 3), "zero": torch.tensor(1.0),
}
from minicluster.changes.value_digest import value_digest
for name, value in values.items():
    print(name, value_digest(value))
"""


def of_process(seed: str) -> dict[str, str]:
    environ = {**os.environ, "PYTHONHASHSEED": seed}
    result = subprocess.run(
        [sys.executable, "-c", VALUES], env=environ, capture_output=True, text=True, check=True
    )
    return dict(line.split() for line in result.stdout.splitlines())


def test_two_processes_agree_about_equal_values():
    first = of_process("1")
    assert "None" not in first.values()
    assert len(set(first.values())) == len(first)
    assert of_process("2") == first


shared = torch.ones(2)
UNLIKE = [
    (1, 2),
    (1, 1.0),
    ([1, 2], [2, 1]),
    ([[1], [2]], [[1], [1]]),
    (["ab", "c"], ["a", "bc"]),
    ({"a": 1}, {"a": 2}),
    (torch.zeros(4), torch.zeros(2, 2)),
    (torch.zeros(4), torch.zeros(4, dtype=torch.int32)),
    (numpy.zeros(4), numpy.array([0, 0, 0, 1e-9])),
    ([shared, torch.zeros(2), shared], [shared, torch.zeros(2), torch.zeros(2)]),
]


@pytest.mark.parametrize(("one", "other"), UNLIKE)
def test_values_that_differ(one, other):
    assert value_digest(one) != value_digest(other)


def test_sharing_is_no_difference():
    assert value_digest([shared, shared]) == value_digest([shared, shared.clone()])


def test_buffers_are_no_difference_and_parameters_are():
    one, other = (torch.nn.BatchNorm1d(2) for _ in range(2))
    other(torch.randn(8, 2))
    assert value_digest(one) == value_digest(other)
    torch.nn.init.zeros_(other.weight)
    assert value_digest(one) != value_digest(other)


class Raises:
    def __reduce_ex__(self, protocol):
        raise OSError


def nested() -> list[object]:
    deep: list[object] = []
    for _ in range(100_000):
        deep = [deep]
    return deep


@pytest.mark.parametrize(
    "value",
    [
        Raises(),
        torch.utils.data.DataLoader([1]),
        torch.device("cpu"),
        (number for number in range(3)),
        [[number] for number in range(200_001)],
        nested(),
    ],
    ids=["raises", "loader", "device", "generator", "many", "deep"],
)
def test_nothing_is_claimed_of_what_cannot_be_compared(value):
    assert value_digest(value) is None
