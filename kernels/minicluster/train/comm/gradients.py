"""How the gradients of a backward pass are averaged over the ranks: exactly, in 16 bits, or by PowerSGD.

Each strategy gets DistributedDataParallel's buckets, one after the other, on all ranks in the same order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
from torch.futures import Future

GradFuture = Future[torch.Tensor]
_EPSILON: Any = 1e-8
"""For PowerSGD, against a division by zero; torch declares it as a whole number."""


class Bucket(Protocol):
    """torch.distributed.GradBucket, or several of them as one.

    buffer: gradients, flattened, of one type and device. gradients: views of it with the parameters' shapes.
    """

    def buffer(self) -> torch.Tensor: ...
    def gradients(self) -> list[torch.Tensor]: ...
    def is_last(self) -> bool: ...
    def index(self) -> int: ...


class Peers(Protocol):
    """The ranks that train a model together. place: this rank's index among them."""

    @property
    def count(self) -> int: ...

    @property
    def place(self) -> int: ...

    def sum(self, tensor: torch.Tensor) -> GradFuture:
        """Sum a tensor over the ranks, in place."""
        ...


class Strategy(Protocol):
    """How one model's gradients, or else its weights, are averaged."""

    def average(self, bucket: Bucket) -> GradFuture:
        """Return a future of what the bucket's buffer shall contain."""
        ...


def told_by_all(peers: Peers, values: Sequence[float], device: torch.device) -> list[list[float]]:
    """Return what each rank gave: a row for each, in the order of their places."""
    table = torch.zeros(peers.count, len(values), dtype=torch.float32, device=device)
    table[peers.place] = torch.tensor(values, dtype=torch.float32)
    peers.sum(table).wait()
    return table.tolist()


def done(tensor: torch.Tensor) -> GradFuture:
    future: GradFuture = Future()
    future.set_result(tensor)
    return future


class ExactGradients:
    """Plain averaging, as DistributedDataParallel does it."""

    def __init__(self, peers: Peers) -> None:
        self._peers = peers

    def average(self, bucket: Bucket) -> GradFuture:
        return self._peers.sum(bucket.buffer().div_(self._peers.count))


class HalfGradients:
    """Averaging in 16 bits: half of the bytes. torch's own hook for bfloat16 refuses the CPU.

    dtype: bfloat16 has the range of float32, and 8 bits of precision; float16 has 11 bits, and overflows
    beyond 65504.
    """

    def __init__(self, peers: Peers, dtype: torch.dtype) -> None:
        self._peers = peers
        self._dtype = dtype

    def average(self, bucket: Bucket) -> GradFuture:
        buffer = bucket.buffer()
        sent = (buffer / self._peers.count).to(self._dtype)
        return self._peers.sum(sent).then(lambda summed: buffer.copy_(summed.value()))


class WholeGradients:
    """Collects all buckets of a backward pass, and averages them only then.

    average_all: called with the buckets; it replaces what their buffers contain.
    """

    def __init__(self, average_all: Callable[[Sequence[Bucket]], None]) -> None:
        self._average_all = average_all
        self._waiting: list[tuple[HeldBucket, GradFuture]] = []

    def average(self, bucket: Bucket) -> GradFuture:
        future: GradFuture = Future()
        self._waiting.append((HeldBucket(bucket.buffer(), bucket.gradients()), future))
        if bucket.is_last():
            waiting, self._waiting = self._waiting, []
            self._average_all([held for held, _ in waiting])
            for held, waits in waiting:
                waits.set_result(held.flat)
        return future


@dataclass(frozen=True)
class HeldBucket:
    """A bucket of its own. torch's may be gone after the call that brought it; its tensors stay."""

    flat: torch.Tensor
    parts: list[torch.Tensor]
    number: int = 0

    def buffer(self) -> torch.Tensor:
        return self.flat

    def gradients(self) -> list[torch.Tensor]:
        return self.parts

    def index(self) -> int:
        return self.number

    def is_last(self) -> bool:
        return True


@dataclass
class PowerSGD:
    """torch's PowerSGD, which sends a product of two thin matrices in place of each gradient's matrix.

    Vogels et al., https://arxiv.org/abs/1905.13727. torch's hook averages several things in a row for each
    bucket; on Gloo they get mixed up if there are two buckets. So all buckets are one.

    group: returns the process group, which may be made anew. rank: columns of the matrices.
    """

    group: Callable[[], Any]
    rank: int
    _states: dict[tuple[torch.dtype, torch.device], powerSGD_hook.PowerSGDState] = field(default_factory=dict)

    def average(self, bucket: Bucket) -> GradFuture:
        return self._whole.average(bucket)

    def __post_init__(self) -> None:
        self._whole = WholeGradients(self.average_all)

    def average_all(self, buckets: Sequence[Bucket]) -> None:
        """Average the gradients of all buckets, those of each type and device in one go."""
        for kind in sorted({_kind(bucket) for bucket in buckets}, key=str):
            alike = [bucket for bucket in buckets if _kind(bucket) == kind]
            whole = joined(alike)
            state = self._state(kind)
            state.process_group = self.group()
            powerSGD_hook.powerSGD_hook(state, whole).wait()  # pyright: ignore[reportArgumentType]
            _take_apart(whole.flat, alike)

    def _state(self, kind: tuple[torch.dtype, torch.device]) -> powerSGD_hook.PowerSGDState:
        if kind not in self._states:
            # The steps before are another strategy's: here each step is compressed.
            state = powerSGD_hook.PowerSGDState(
                None, matrix_approximation_rank=self.rank, start_powerSGD_iter=2, random_seed=0,
                orthogonalization_epsilon=_EPSILON, batch_tensors_with_same_shape=True,
            )  # fmt: skip
            state.iter = 2
            self._states[kind] = state
        return self._states[kind]


def _kind(bucket: Bucket) -> tuple[torch.dtype, torch.device]:
    return bucket.buffer().dtype, bucket.buffer().device


def joined(buckets: Sequence[Bucket]) -> HeldBucket:
    """Return a copy of the buckets as a single one."""
    parts = [part for bucket in buckets for part in bucket.gradients()]
    flat = torch.cat([part.reshape(-1) for part in parts])
    sizes = [part.numel() for part in parts]
    views = [view.view(part.shape) for view, part in zip(flat.split(sizes), parts, strict=True)]
    return HeldBucket(flat, views)


def _take_apart(flat: torch.Tensor, buckets: Sequence[Bucket]) -> None:
    """Copy a joined bucket's contents back into the buckets it was made of."""
    parts = [part for bucket in buckets for part in bucket.gradients()]
    for part, values in zip(parts, flat.split([part.numel() for part in parts]), strict=True):
        part.copy_(values.view(part.shape))
