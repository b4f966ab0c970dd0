"""A trial of a way to communicate: what the model and its optimizers were before, to go back to it."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.optim import Optimizer

from minicluster.train.comm.losses import behaves_otherwise
from minicluster.train.metrics import step_times
from minicluster.wire.comm import METHODS, CommMethod

LEAST_STEPS = 12
PERIODS = 3


_looking: weakref.WeakSet[Optimizers] = weakref.WeakSet()


def _stepped(optimizer: Optimizer) -> None:
    for optimizers in tuple(_looking):
        optimizers.stepped(optimizer)


class Optimizers:
    """The optimizers that step a model's weights, from now until `close`."""

    def __init__(self, module: torch.nn.Module) -> None:
        self._module = weakref.ref(module)
        self._found: weakref.WeakKeyDictionary[Optimizer, None] = weakref.WeakKeyDictionary()
        _looking.add(self)
        if _stepped not in step_times.watchers:
            step_times.watchers.append(_stepped)

    @property
    def found(self) -> list[Optimizer]:
        """Those that have stepped, in the order of their first steps."""
        return list(self._found)

    def close(self) -> None:
        """Look for no more."""
        _looking.discard(self)

    def stepped(self, optimizer: Optimizer) -> None:
        module = self._module()
        if module is not None and optimizer not in self._found and steps_weights_of(optimizer, module):
            self._found[optimizer] = None


def steps_weights_of(optimizer: Optimizer, module: torch.nn.Module) -> bool:
    """Return whether an optimizer has weights of a model."""
    own = {id(weight) for weight in module.parameters()}
    return any(id(weight) in own for weight in _weights_of(optimizer))


@dataclass(frozen=True)
class Before:
    """Copies of a model's weights and buffers, and of its optimizers' states by their weights' numbers.

    An optimizer's settings, such as a learning rate that a scheduler changes, are no part of it.
    """

    values: list[torch.Tensor]
    states: list[dict[int, Any]]

    @classmethod
    def of(cls, module: torch.nn.Module, optimizers: Iterable[Optimizer]) -> Before:
        values = [tensor.detach().clone() for tensor in _tensors(module)]
        return cls(values, [_state_of(optimizer) for optimizer in optimizers])

    @torch.no_grad()
    def restore(self, module: torch.nn.Module, optimizers: Sequence[Optimizer]) -> None:
        """Put all back. What an optimizer learned of further weights meanwhile is forgotten."""
        for tensor, value in zip(_tensors(module), self.values, strict=True):
            tensor.copy_(value)
        for optimizer, states in zip(optimizers, self.states, strict=True):
            weights = _weights_of(optimizer)
            optimizer.state.clear()
            for number, state in states.items():
                optimizer.state[weights[number]] = state


def _state_of(optimizer: Optimizer) -> dict[int, Any]:
    weights = enumerate(_weights_of(optimizer))
    return {
        number: copy.deepcopy(optimizer.state[weight])
        for number, weight in weights
        if weight in optimizer.state
    }


def _weights_of(optimizer: Optimizer) -> list[torch.Tensor]:
    return [weight for group in optimizer.param_groups for weight in group["params"]]


def _tensors(module: torch.nn.Module) -> list[torch.Tensor]:
    return [*module.parameters(), *module.buffers()]


@dataclass(frozen=True)
class Trial:
    """The steps in which a way to communicate is tried.

    first: the number of the first. losses: before it, each the mean of all ranks.
    """

    first: int
    method: CommMethod
    losses: Sequence[float]
    before: Before

    @property
    def period(self) -> int:
        """Steps between two averagings of the weights; 1 if gradients are averaged."""
        return self.method.whole("period") if "period" in METHODS[self.method.name] else 1

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

    def failure(self, losses: Sequence[float]) -> str:
        """Return a sentence about what was done because it failed."""
        before = f", {self.losses[-1]:.4g} before" if self.losses else ""
        return (
            f"The loss behaved otherwise than with plain DDP: {losses[-1]:.4g} after a trial of {self.steps} "
            f"steps{before}. Model and optimizer are as before the trial; plain DDP goes on: --comm ddp."
        )
