"""States of NumPy in a snapshot, and objects with weights as Keras has them. JAX is in tests/frameworks."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import minicluster as mc
from minicluster.train.calls import WrongCall
from minicluster.train.snapshots import state
from minicluster.train.snapshots.arrays import SnapshotImpossible
from minicluster.train.snapshots.state import Parts


class Moments(NamedTuple):
    count: int
    mean: Any


class Model:
    """As a model of Keras, which gives and takes its weights."""

    def __init__(self, *weights: Any) -> None:
        self._weights = [np.asarray(one) for one in weights]

    def get_weights(self) -> list[Any]:
        return self._weights

    def set_weights(self, weights: list[Any]) -> None:
        self._weights = weights


def through_files(folder: Path, part: Any, onto: Any) -> Any:
    """Save an object's state, and restore it into another object."""
    parts = Parts({"it": state.state_of("it", part)})
    state.write_files(folder, parts.tensors, parts.rest)
    tensors, rest = state.read_files(folder)
    state.put_back(onto, state.put_together(rest, tensors)["it"], "it")
    return onto


LARGE = np.arange(40_000, dtype=np.float64).reshape(200, 200)


def test_arrays_come_back_large_and_small(tmp_path: Path) -> None:
    part = {"large": LARGE, "small": np.ones(3, np.int8), "words": np.array(["a", "bc"]), "step": 7}
    back = through_files(tmp_path, part, {"large": None, "of the cell": 1})
    assert list(back) == ["large", "small", "words", "step"]
    assert np.array_equal(back["large"], LARGE) and back["large"].flags.writeable
    assert (back["small"].dtype, back["words"].tolist(), back["step"]) == (np.int8, ["a", "bc"], 7)


def test_only_a_large_array_is_a_tensor_of_its_own() -> None:
    assert list(Parts({"a": {"large": LARGE, "small": np.ones(3)}}).tensors) == ["a.large"]


def test_named_tuples_stay_what_they_are(tmp_path: Path) -> None:
    part = [Moments(3, LARGE), (1, [2.5])]
    moments, rest = through_files(tmp_path, part, [])
    assert type(moments) is Moments
    assert (moments.count, rest) == (3, (1, [2.5]))
    assert np.array_equal(moments.mean, LARGE)


def test_a_model_takes_its_weights_and_says_if_they_are_of_another(tmp_path: Path) -> None:
    model = through_files(tmp_path / "one", Model(LARGE, [1.0]), Model(0 * LARGE, [0.0]))
    assert np.array_equal(model.get_weights()[0], LARGE) and model.get_weights()[1].tolist() == [1.0]
    with pytest.raises(SnapshotImpossible, match="it has 1 variables, but 2 in the snapshot") as caught:
        through_files(tmp_path / "other", Model(LARGE, [1.0]), Model(LARGE))
    assert "Build it before mc.resume()" in caught.value.hint


@pytest.mark.parametrize("part", [LARGE, (1, 2), 0.5, Moments(1, 2)])
def test_what_cannot_be_filled_is_to_be_put_into_a_dict(part: Any) -> None:
    with pytest.raises(SnapshotImpossible, match=r"params \(\w+\) cannot be saved") as caught:
        state.check({"params": part}, "mc.checkpoint(state, step=step)")
    assert "dict" in caught.value.hint


def test_nothing_is_nothing_to_save() -> None:
    with pytest.raises(WrongCall, match="Neither a model"):
        mc.resume()


def test_sizes_are_estimated_for_each_kind() -> None:
    assert state.size_bytes({"a": LARGE, "b": [LARGE, 3]}) == 2 * LARGE.nbytes
