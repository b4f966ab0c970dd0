"""A rank's GPU: chosen before its process group is made, with a CUDA context before its cell runs.

The zygote never uses CUDA: a context does not survive a fork. So each rank makes its own, which takes some
tenths of a second, in a thread beside what it does until the cell: the process group, the payload. In a
session that is at `%distribute up`, long before the first cell.
"""

from __future__ import annotations

import contextlib
import os
import threading

import torch
import torch.distributed as dist

from minicluster.wire.machines.gpu_share import SHARE_VARIABLE


def choose(local_rank: int, local_world_size: int) -> str:
    """Make the rank's GPU, if any, the current device; return the backend to use."""
    if not torch.cuda.is_available():
        return "gloo"
    count = torch.cuda.device_count()
    torch.cuda.set_device(local_rank % count)
    if share := os.environ.get(SHARE_VARIABLE):
        # MPS limits the process, too; this limit's error is torch's own, with what the cell's tensors take.
        torch.cuda.set_per_process_memory_fraction(float(share))
    # NCCL refuses two ranks on one GPU.
    return "cpu:gloo,cuda:nccl" if local_world_size <= count and dist.is_nccl_available() else "gloo"


class CudaContext:
    """Makes the current device's context in a thread, if there is a GPU.

    `ready` must be called before the cell: a cell may fork, and a fork beside a running thread can hang.
    """

    def __init__(self) -> None:
        self._making: threading.Thread | None = None

    def begin(self) -> None:
        if torch.cuda.is_available():
            device = torch.cuda.current_device()
            self._making = threading.Thread(
                target=_touch, args=(device,), name="minicluster-cuda", daemon=True
            )
            self._making.start()

    def ready(self) -> None:
        """Wait until it is there. If it could not be made, the cell's own first use of the GPU says why."""
        if self._making is not None:
            self._making.join()


def _touch(device: int) -> None:
    with contextlib.suppress(RuntimeError):
        torch.cuda.synchronize(device)
