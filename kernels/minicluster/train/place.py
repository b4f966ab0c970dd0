"""Where this process stands in its job: rank 0 of 1 outside of one."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def rank() -> int:
    """Return this process's number, from 0 to world_size() - 1."""
    return int(os.environ.get("RANK", "0"))


def world_size() -> int:
    """Return the number of processes that train together."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def local_rank() -> int:
    """Return this process's number on its node."""
    return int(os.environ.get("LOCAL_RANK", "0"))


def device() -> torch.device:
    """Return the GPU of this rank, or the CPU where there is none."""
    import torch

    if not torch.cuda.is_available():
        return torch.device("cpu")
    return torch.device("cuda", local_rank() % torch.cuda.device_count())
