# pyright: reportIncompatibleMethodOverride=false
"""A process group of one real rank: the other ranks are imagined to hold what this one holds.

Collectives end at once. What rank 0 broadcasts is kept for the virtual ranks after it, as far as it is small.
"""

from __future__ import annotations

import os
import pickle
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import (
    HashStore,
    _create_work_from_future,  # pyright: ignore[reportAttributeAccessIssue]
)
from torch.distributed import distributed_c10d
from torch.futures import Future

BACKEND = "virtual"
_SMALL_BYTES = 1 << 20
_SUM = (dist.ReduceOp.SUM, dist.ReduceOp.PREMUL_SUM)

Tensors = list[torch.Tensor]


class Broadcasts:
    """What rank 0 has broadcast, in order; large tensors are left out. file: holds it between processes."""

    def __init__(self, file: Path, rank: int) -> None:
        self._file = file
        self._rank = rank
        self._sent: list[torch.Tensor | None] = []
        self._next = 0
        if rank and file.exists():
            self._sent = pickle.loads(file.read_bytes())  # noqa: S301 - written by rank 0 of this dry run

    def exchange(self, tensors: Tensors, root: int) -> None:
        """Keep what this rank broadcasts, or take what rank 0 did."""
        if root != 0:
            return
        for tensor in tensors:
            if self._rank == 0:
                self._sent.append(tensor.detach().cpu().clone() if tensor.nbytes <= _SMALL_BYTES else None)
            elif self._next < len(self._sent):
                sent = self._sent[self._next]
                self._next += 1
                if sent is not None and sent.shape == tensor.shape and sent.dtype == tensor.dtype:
                    with torch.no_grad():
                        tensor.copy_(sent)

    def save(self) -> None:
        if self._rank == 0:
            self._file.write_bytes(pickle.dumps(self._sent))


class VirtualGroup(dist.ProcessGroup):
    """Answers each collective as if all ranks held this rank's tensors."""

    def __init__(self, rank: int, size: int, broadcasts: Broadcasts) -> None:
        super().__init__(rank, size)  # pyright: ignore[reportCallIssue]
        self._size = size
        self._broadcasts = broadcasts
        self.collectives: list[tuple[float, int, bool]] = []
        """When each was called, the bytes of its tensors, and whether the rank waits for it at once."""

    def size(self) -> int:
        return self._size

    def getBackendName(self) -> str:
        return BACKEND

    def allreduce(self, tensors: Tensors, opts: Any = None) -> Any:
        self._note(tensors, opts)
        self._reduce(tensors, opts)
        return _done(tensors)

    def allreduce_coalesced(self, tensors: Tensors, opts: Any = None) -> Any:
        return self.allreduce(tensors, opts)

    def reduce(self, tensors: Tensors, opts: Any = None) -> Any:
        return self.allreduce(tensors, opts)

    def broadcast(self, tensors: Tensors, opts: Any = None) -> Any:
        self._broadcasts.exchange(tensors, 0 if opts is None else opts.rootRank)
        return _done(tensors)

    def barrier(self, opts: Any = None) -> Any:
        return _done([])

    def monitored_barrier(self, *_args: Any, **_named: Any) -> None:
        return None

    def allgather(self, outputs: list[Tensors], inputs: Tensors, opts: Any = None) -> Any:
        for parts, tensor in zip(outputs, inputs, strict=True):
            _fill(parts, tensor)
        return _done(outputs)

    def gather(self, outputs: list[Tensors], inputs: Tensors, opts: Any = None) -> Any:
        return self.allgather(outputs, inputs, opts) if outputs else _done([])

    def allgather_coalesced(self, outputs: list[Tensors], inputs: Tensors, opts: Any = None) -> Any:
        for parts in outputs:
            for part, tensor in zip(parts, inputs, strict=True):
                part.copy_(tensor)
        return _done(outputs)

    def _allgather_base(self, output: torch.Tensor, tensor: torch.Tensor, opts: Any = None) -> Any:
        _fill(output.chunk(self._size), tensor)
        return _done([output])

    def allgather_into_tensor_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> Any:
        for output, tensor in zip(outputs, inputs, strict=True):
            self._allgather_base(output, tensor)
        return _done(outputs)

    def reduce_scatter(self, outputs: Tensors, inputs: list[Tensors], opts: Any = None) -> Any:
        for output, parts in zip(outputs, inputs, strict=True):
            output.copy_(parts[self.rank()])
        self._reduce(outputs, opts)
        return _done(outputs)

    def _reduce_scatter_base(self, output: torch.Tensor, tensor: torch.Tensor, opts: Any = None) -> Any:
        return self.reduce_scatter([output], [list(tensor.chunk(self._size))], opts)

    def reduce_scatter_tensor_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> Any:
        return self.reduce_scatter(outputs, [list(one.chunk(self._size)) for one in inputs], opts)

    def scatter(self, outputs: Tensors, inputs: list[Tensors], opts: Any = None) -> Any:
        for output, parts in zip(outputs, inputs, strict=False):
            output.copy_(parts[self.rank()])
        return _done(outputs)

    def alltoall(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> Any:
        for output, tensor in zip(outputs, inputs, strict=True):
            _copy_alike(output, tensor)
        return _done(outputs)

    def alltoall_base(self, output: torch.Tensor, tensor: torch.Tensor, *_splits: Any) -> Any:
        _copy_alike(output, tensor)
        return _done([output])

    def send(self, tensors: Tensors, *_where: Any) -> Any:
        return _done(tensors)

    def recv(self, tensors: Tensors, *_where: Any) -> Any:
        return _done(tensors)

    def recv_anysource(self, tensors: Tensors, *_where: Any) -> Any:
        return _done(tensors)

    def _note(self, tensors: Tensors, opts: Any) -> None:
        size = sum(tensor.nbytes for tensor in tensors)
        blocks = opts is not None and not opts.asyncOp
        self.collectives.append((time.perf_counter(), size, blocks))

    def _reduce(self, tensors: Tensors, opts: Any) -> None:
        operation = dist.ReduceOp.SUM if opts is None else opts.reduceOp
        if any(operation == one for one in _SUM):
            with torch.no_grad():
                for tensor in tensors:
                    tensor.mul_(self._size)


def _fill(parts: Sequence[torch.Tensor], tensor: torch.Tensor) -> None:
    with torch.no_grad():
        for part in parts:
            part.copy_(tensor.view(part.shape) if part.numel() == tensor.numel() else part)


def _copy_alike(output: torch.Tensor, tensor: torch.Tensor) -> None:
    with torch.no_grad():
        output.copy_(tensor) if output.shape == tensor.shape else output.zero_()


def _done(result: Any) -> Any:
    future: Future[Any] = Future()
    future.set_result(result)
    return _create_work_from_future(future)


class VirtualGroups:
    """Makes the default group, and lets the cell make groups: whatever it asks for, they are virtual.

    backend: what the cell is told that it is.
    """

    def __init__(self, backend: str, broadcasts: Broadcasts) -> None:
        self._backend = backend
        self._broadcasts = broadcasts
        self._rank, self._size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self._torch_init: Callable[..., None] = dist.init_process_group
        self._torch_new: Callable[..., Any] = dist.new_group

    def make(self) -> None:
        """Make the group and replace torch's functions."""
        dist.Backend.register_backend(BACKEND, self._group, devices=["cpu", "cuda"])
        self._init()
        self.group: VirtualGroup = distributed_c10d._get_default_group()  # type: ignore[assignment]
        for module in (dist, distributed_c10d):
            vars(module).update(
                init_process_group=self.init_process_group,
                new_group=self.new_group,
                get_backend=lambda group=None: self._backend,
            )

    def init_process_group(self, *_args: Any, **_named: Any) -> None:
        """Replace torch.distributed.init_process_group."""
        if dist.is_initialized():
            dist.destroy_process_group()
        self._init()

    def new_group(self, ranks: Any = None, *_args: Any, **_named: Any) -> Any:
        """Replace torch.distributed.new_group."""
        return self._torch_new(ranks, backend=BACKEND)

    def wait_for_all(self) -> None:
        """There is nobody to wait for."""

    def _init(self) -> None:
        self._torch_init(BACKEND, store=HashStore(), rank=self._rank, world_size=self._size)

    def _group(self, _store: Any, rank: int, size: int, _timeout: timedelta) -> VirtualGroup:
        return VirtualGroup(rank, size, self._broadcasts)
