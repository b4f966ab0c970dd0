"""What a rank does for any framework: the calls in their order, all of which do nothing here."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

import torch

from minicluster.wire import RunOrder

ReportWaiting = Callable[[str], None]
"""Called with what a rank waits for, if the wait is long."""


class RankLibrary:
    """A rank's set-up for its framework. trains_with_torch: whether torch's group and GPU are made before
    the cell; otherwise the cell still may make a group itself.
    """

    trains_with_torch = False

    def __init__(self, order: RunOrder, local_rank: int) -> None:
        self.order = order
        self.local_rank = local_rank
        self.rank = order.first_rank + local_rank

    def prepare(self) -> None:
        """Set the framework up. The environment has torchrun's variables; the cell has not begun."""

    def before_names(self, pickled: bytes) -> None:
        """Be ready for names that the notebook sent with a cell. pickled: they are in it."""

    def meet(self, report_waiting: ReportWaiting) -> None:
        """Wait for the other ranks, if they end together. The cell is over on this one."""

    def end(self, report_waiting: ReportWaiting) -> None:
        """End what the ranks began together. The result is written."""

    def abandon(self) -> None:
        """Let the rank end at once, after an error: the others are ended anyway."""


def gpus_here(environ: Mapping[str, str] = os.environ, devices: Path = Path("/dev")) -> int:
    """Return how many GPUs this task has. The torch of an image for JAX may be a build for CPUs.

    This asks no driver, or torch, which starts no context.
    """
    if torch.cuda.is_available():
        return torch.cuda.device_count()
    named = environ.get("CUDA_VISIBLE_DEVICES")
    if named is not None:
        return len([gpu for gpu in named.split(",") if gpu not in ("", "-1")])
    return len(list(devices.glob("nvidia[0-9]*")))
