"""Which set-up a rank has: that of the framework that its order names. None of them imports its framework."""

from __future__ import annotations

from collections.abc import Mapping

from minicluster.runtime.rank.libraries.base import RankLibrary
from minicluster.runtime.rank.libraries.jax import Jax
from minicluster.runtime.rank.libraries.plain import Plain
from minicluster.runtime.rank.libraries.tensorflow import TensorFlow
from minicluster.runtime.rank.libraries.trainers import Torch
from minicluster.wire import RunOrder
from minicluster.wire.training.framework import Framework

_CLASSES: Mapping[Framework, type[RankLibrary]] = {
    Framework.TORCH: Torch,
    Framework.JAX: Jax,
    Framework.TENSORFLOW: TensorFlow,
    Framework.NONE: Plain,
}


def library_of(order: RunOrder, local_rank: int) -> RankLibrary:
    """Return what a rank does for its framework."""
    return _CLASSES[order.framework](order, local_rank)
