"""This process's rank, world size and device; outside of a job, it is rank 0 of 1."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

from minicluster.train.calls import called_as
from minicluster.train.live.settings import LIVE_RANK, LIVE_WORLD_SIZE

if TYPE_CHECKING:
    import torch

FRAMEWORK = "MINICLUSTER_FRAMEWORK"
"""The variable with what trains in this rank's cell, as in minicluster.wire.training.framework."""


def framework() -> str:
    """Return what trains in this process; outside of a job, torch."""
    return os.environ.get(FRAMEWORK) or "torch"


@called_as("mc.rank()")
def rank() -> int:
    """Return this process's number, from 0 to world_size() - 1.

    In a fault-tolerant job it is the number among the ranks that take part now; RANK does not change.
    """
    return int(os.environ.get(LIVE_RANK) or os.environ.get("RANK", "0"))


@called_as("mc.world_size()")
def world_size() -> int:
    """Return the number of processes that train together; in a fault-tolerant job, right now."""
    return int(os.environ.get(LIVE_WORLD_SIZE) or os.environ.get("WORLD_SIZE", "1"))


@called_as("mc.local_rank()")
def local_rank() -> int:
    """Return this process's number on its node."""
    return int(os.environ.get("LOCAL_RANK", "0"))


@called_as("mc.device()")
def device() -> Any:
    """Return the GPU of this rank, or the CPU where there is none: a torch.device.

    In a cell of JAX it is a jax.Device, which starts JAX's back end: call it after
    jax.distributed.initialize(). In a cell of TensorFlow it is a name for tf.device().
    """
    if framework() == "jax" and (jax := sys.modules.get("jax")):
        return jax.local_devices()[0]
    if framework() == "tensorflow" and (tensorflow := sys.modules.get("tensorflow")):
        return "/GPU:0" if tensorflow.config.get_visible_devices("GPU") else "/CPU:0"
    return torch_device()


def torch_device() -> torch.device:
    """Return what mc.device() does in a cell of torch."""
    import torch

    if not torch.cuda.is_available():
        return torch.device("cpu")
    return torch.device("cuda", local_rank() % torch.cuda.device_count())


def why_no_group() -> str:
    """Return the hint of an error about a rank that has no process group of torch."""
    if framework() == "torch":
        return "Call it before destroying the group."
    return f"It is for torch, and this cell was made for {framework()}: say --framework torch."
