"""A trial of a way to communicate: what the model and its optimizers were before, to go back to it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.optim import Optimizer

from minicluster.train.comm.losses import behaves_otherwise

LEAST_STEPS = 12
PERIODS = 3


class Before:
    """Copies of a model's weights and buffers, and of its optimizers' states."""

    def __init__(self, model: torch.nn.Module, optimizers: Iterable[Optimizer]) -> None:
        self._tensors = [*model.parameters(), *model.buffers()]
        self._values = [tensor.detach().clone() for tensor in self._tensors]
        self._states = [(optimizer, _copied(optimizer)) for optimizer in optimizers]

    @torch.no_grad()
    def restore(self) -> None:
        """Put all back. What an optimizer learned of further weights meanwhile is forgotten."""
        for tensor, value in zip(self._tensors, self._values, strict=True):
            tensor.copy_(value)
        for optimizer, state in self._states:
            optimizer.state.clear()
            optimizer.state.update(state)


def _copied(optimizer: Optimizer) -> dict[Any, dict[str, Any]]:
    return {
        weight: {
            name: value.clone() if isinstance(value, torch.Tensor) else value for name, value in state.items()
        }
        for weight, state in optimizer.state.items()
    }


@dataclass(frozen=True)
class Trial:
    """The steps in which a way to communicate is tried.

    first: the number of the first. period: of averaging weights; 1 if gradients are averaged. losses: before
    it, each the mean of all ranks.
    """

    first: int
    period: int
    losses: Sequence[float]
    before: Before

    @property
    def steps(self) -> int:
        return LEAST_STEPS if self.period == 1 else max(LEAST_STEPS, PERIODS * self.period)

    def failed(self, losses: Sequence[float]) -> bool:
        """Return whether the losses of its steps, each the mean of all ranks, behave otherwise than before.

        A rank that trains apart may do well on its own data while the average of all does not: so the first
        step after each averaging counts by itself.
        """
        late = losses[len(losses) // 2 :]
        averaged = losses[self.period :: self.period] if self.period > 1 else []
        return any(behaves_otherwise(self.losses, some) for some in (late, averaged) if some)
