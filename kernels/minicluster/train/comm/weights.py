"""Training in which each rank takes steps of its own, and all average their weights from time to time.

Local SGD: Stich, https://arxiv.org/abs/1805.09767. DiLoCo, in which an outer optimizer takes the averaged
change of the weights for a gradient: Douillard et al., https://arxiv.org/abs/2311.08105.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from minicluster.train.comm.gradients import Bucket, GradFuture, Peers, done

_CHUNK_BYTES = 64 << 20
"""How much is averaged at once: a limit for the memory that it takes besides."""


@dataclass(frozen=True)
class OuterStep:
    """What to do with the averaged change of the weights: SGD with Nesterov's momentum.

    lr=1 without momentum takes the average itself, which is local SGD.
    """

    lr: float = 1.0
    momentum: float = 0.0


class LocalSteps:
    """Lets a model's ranks train apart for `period` backward passes, then averages the model.

    sent: the type in which changes travel. The average is due before the next forward pass: ranks make as
    many backward passes as each other, but an optimizer may skip a step on one of them, as with a GradScaler.
    """

    def __init__(
        self, model: torch.nn.Module, peers: Peers, period: int, outer: OuterStep, sent: torch.dtype
    ) -> None:
        self._peers = peers
        self._period = period
        self._outer = outer
        self._sent = sent
        self._chunks = [Chunk(tensors) for tensors in _chunks_of(_trained(model))]
        self._buffers = list(_chunks_of(one for one in model.buffers() if one.is_floating_point()))
        self._apart = 0
        self._factors = 0.0

    @property
    def is_due(self) -> bool:
        return self._apart >= self._period

    def average(self, bucket: Bucket) -> GradFuture:
        """Keep the gradient as it is."""
        self._apart += bucket.is_last()
        return done(bucket.buffer())

    def weigh(self, factor: float) -> None:
        """Count the next backward pass by this factor times as much as a rank's share of the average."""
        self._factors += factor - 1.0

    def before_forward(self) -> None:
        """Average if it is time for it; remember from where the ranks go on."""
        if self.is_due:
            self.settle()
        self.begin_period()

    def begin_period(self) -> None:
        """Remember the weights, unless the ranks are apart."""
        if not self._apart:
            self.part()

    def part(self) -> None:
        """Remember the weights from which the ranks go on."""
        for chunk in self._chunks:
            chunk.remember()

    @property
    def apart(self) -> int:
        """How many backward passes the ranks have made since they averaged."""
        return self._apart

    def settle(self) -> bool:
        """Make the weights equal on all ranks; return whether they were apart."""
        if not self._apart:
            return False
        self.take(self.means())
        return True

    @torch.no_grad()
    def means(self) -> Means:
        """Average over the ranks, and change nothing yet: a rank may be lost meanwhile."""
        return Means(
            [self._mean(chunk.change(), self._sent) for chunk in self._chunks],
            # What the model counts itself, such as the means of BatchNorm.
            [self._mean(flat(buffers), torch.float32) for buffers in self._buffers],
        )

    @torch.no_grad()
    def take(self, means: Means) -> None:
        """Take the outer step with the averaged change of the weights since they were remembered."""
        for chunk, change in zip(self._chunks, means.changes, strict=True):
            chunk.step(change, self._outer)
        for buffers, mean in zip(self._buffers, means.buffers, strict=True):
            put(mean, buffers)
        self._apart, self._factors = 0, 0.0

    def state_dict(self) -> dict[str, Any]:
        """Return what a rank that joins needs besides the weights to take part in the next average."""
        return {"apart": self._apart, "chunks": [chunk.state_dict() for chunk in self._chunks]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._apart = state["apart"]
        for chunk, saved in zip(self._chunks, state["chunks"], strict=True):
            chunk.load_state_dict(saved)

    def _mean(self, own: torch.Tensor, sent: torch.dtype) -> torch.Tensor:
        factor = 1.0 + self._factors / max(1, self._apart)
        mean = (own * factor / self._peers.count if self._factors else own / self._peers.count).to(sent)
        self._peers.sum(mean).wait()
        return mean


@dataclass(frozen=True)
class Means:
    """Averages over all ranks, flattened: of the changes of each chunk of weights, and of each of buffers."""

    changes: list[torch.Tensor]
    buffers: list[torch.Tensor]


class Chunk:
    """Some weights of one type and device, as they are and, flattened, as they were when the ranks parted."""

    def __init__(self, weights: list[torch.Tensor]) -> None:
        self._weights = weights
        self._velocity: torch.Tensor | None = None
        self.remember()

    @torch.no_grad()
    def remember(self) -> None:
        self._before = flat(self._weights)

    @property
    def dtype(self) -> torch.dtype:
        return self._before.dtype

    @property
    def weights(self) -> torch.Tensor:
        """The weights as they are now, as one tensor."""
        return flat(self._weights)

    @torch.no_grad()
    def replace(self, weights: torch.Tensor) -> None:
        """Go on from other weights, as if the ranks parted there."""
        put(weights.to(self._before.device), self._weights)
        self.remember()

    def change(self) -> torch.Tensor:
        return flat(self._weights).sub_(self._before)

    @torch.no_grad()
    def step(self, change: torch.Tensor, outer: OuterStep) -> None:
        """Set the weights to those before, changed by the outer step."""
        change = change.to(self._before.dtype)
        if outer.momentum:
            before = torch.zeros_like(change) if self._velocity is None else self._velocity
            self._velocity = outer.momentum * before + change
            change = change + outer.momentum * self._velocity
        put(torch.add(self._before, change, alpha=outer.lr), self._weights)

    def state_dict(self) -> dict[str, Any]:
        return {"before": self._before, "velocity": self._velocity}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        device, velocity = self._before.device, state["velocity"]
        self._before = state["before"].to(device)
        self._velocity = None if velocity is None else velocity.to(device)


def flat(tensors: list[torch.Tensor]) -> torch.Tensor:
    """Return a copy of some tensors as a single one."""
    return torch.cat([tensor.detach().reshape(-1) for tensor in tensors])


def put(values: torch.Tensor, tensors: list[torch.Tensor]) -> None:
    """Copy what `flat` made back into the tensors."""
    parts = values.split([tensor.numel() for tensor in tensors])
    for tensor, part in zip(tensors, parts, strict=True):
        tensor.copy_(part.view(tensor.shape))


def _trained(model: torch.nn.Module) -> list[torch.Tensor]:
    return [weight for weight in model.parameters() if weight.requires_grad]


def _chunks_of(tensors: Iterable[torch.Tensor]) -> Iterator[list[torch.Tensor]]:
    """Divide tensors into lists of one type and device, and of about _CHUNK_BYTES."""
    chunk: list[torch.Tensor] = []
    for tensor in sorted(tensors, key=lambda one: (str(one.dtype), str(one.device))):
        alike = chunk and (chunk[0].dtype, chunk[0].device) == (tensor.dtype, tensor.device)
        if chunk and (not alike or sum(one.nbytes for one in chunk) >= _CHUNK_BYTES):
            yield chunk
            chunk = []
        chunk.append(tensor)
    if chunk:
        yield chunk
