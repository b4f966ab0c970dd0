"""Marks of values: equal as long as a value is the same, and unequal once it was changed in place."""

import numpy as np
import pytest
import torch

from minicluster.sessions.marks import MOST_PARTS, mark_of


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(2, 2)


def stepped(net):
    with torch.no_grad():
        net.layer.weight.add_(1)


CHANGES = {
    "a list": (lambda: [1, [2]], lambda value: value[1].append(3)),
    "a dictionary": (lambda: {"a": {"b": 1}}, lambda value: value["a"].update(b=2)),
    "a set": (lambda: {1, 2}, lambda value: value.add(3)),
    "an array": (lambda: np.zeros(3), lambda value: value.fill(1)),
    "a tensor": (lambda: torch.zeros(3), lambda value: value.add_(1)),
    "a module": (Net, stepped),
    "a tensor in a list": (lambda: [torch.zeros(3)], lambda value: value[0].add_(1)),
}


@pytest.mark.parametrize(("make", "change"), CHANGES.values(), ids=CHANGES)
def test_a_change_in_place_is_seen(make, change):
    value = make()
    before = mark_of(value)
    assert mark_of(value) == before
    change(value)
    assert mark_of(value) != before


def test_of_other_objects_only_the_identity_is_known():
    first, second = object(), object()
    assert mark_of(first) == mark_of(first) != mark_of(second)


def test_equal_numbers_of_other_types_differ():
    assert mark_of(1) != mark_of(True) and mark_of(1) != mark_of(1.0)


def test_a_list_that_holds_itself_and_a_large_one_have_marks():
    itself = []
    itself.append(itself)
    large = list(range(2 * MOST_PARTS))
    assert mark_of(itself) == mark_of(itself)
    assert mark_of(large) == mark_of(large)
