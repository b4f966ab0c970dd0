"""Trees of JAX in a snapshot, in one process: what is filled, where arrays go, what is refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from minicluster.train.snapshots import state
from minicluster.train.snapshots.arrays import SnapshotImpossible

from ..unit.train.test_snapshot_arrays import through_files

pytestmark = pytest.mark.usefixtures("known_to_jax")


@dataclass
class TrainState:
    """As those of Flax: arrays, and functions that are no part of the state."""

    params: dict[str, Any]
    step: Any
    apply: Callable[..., Any]


@cache
def _register() -> None:
    from jax.tree_util import register_dataclass

    register_dataclass(TrainState, data_fields=["params", "step"], meta_fields=["apply"])


@pytest.fixture
def known_to_jax(jax: None) -> None:
    _register()


def test_a_tree_is_filled_and_keeps_the_cells_functions(tmp_path: Path) -> None:
    import jax.numpy as jnp

    saved = TrainState({"w": jnp.arange(30_000.0), "b": jnp.ones(2, jnp.bfloat16)}, np.int32(4), min)
    there = {"train": TrainState({"w": jnp.zeros(30_000), "b": jnp.zeros(2, jnp.bfloat16)}, 0, max)}
    back = through_files(tmp_path, {"train": saved}, there)["train"]
    assert (type(back), back.apply, back.step) == (TrainState, max, 4)
    assert back.params["w"].tolist() == saved.params["w"].tolist()
    assert (str(back.params["b"].dtype), back.params["b"].tolist()) == ("bfloat16", [1.0, 1.0])


def test_another_tree_is_refused_with_what_differs(tmp_path: Path) -> None:
    import jax.numpy as jnp

    saved, there = ({"train": TrainState({name: jnp.ones(2)}, 0, min)} for name in ("w", "v"))
    with pytest.raises(SnapshotImpossible, match=r"another structure than in the snapshot: .*'v'"):
        through_files(tmp_path, saved, there)


def test_arrays_go_where_those_of_the_cell_are(tmp_path: Path) -> None:
    """What is put on a device stays there; what is free to move must not be bound by the snapshot."""
    import jax

    fixed = jax.device_put(jax.numpy.zeros(3), jax.devices()[0])
    back = through_files(
        tmp_path,
        {"free": jax.numpy.arange(3.0), "fixed": jax.numpy.arange(3.0)},
        {"free": jax.numpy.zeros(3), "fixed": fixed},
    )
    assert (back["free"].committed, back["fixed"].committed) == (False, True)
    assert back["free"].tolist() == back["fixed"].tolist() == [0.0, 1.0, 2.0]


def test_random_keys_come_back(tmp_path: Path) -> None:
    import jax

    back = through_files(tmp_path, {"key": jax.random.key(3)}, {"key": jax.random.key(0)})
    assert jax.random.uniform(back["key"]) == jax.random.uniform(jax.random.key(3))


def test_a_trees_size_is_that_of_its_arrays() -> None:
    import jax.numpy as jnp

    assert state.size_bytes({"train": TrainState({"w": jnp.zeros(1000)}, 0, min)}) == 4000
