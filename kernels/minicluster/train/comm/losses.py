"""The losses of a training, as backward() sees them, and whether they behave as before."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from functools import cache, wraps
from typing import Any

import torch

_SPREADS = 3.0
_TOLERANCE = 0.02


class LastLoss:
    """Remembers the last number whose backward() was called in this process."""

    def __init__(self) -> None:
        self.value: torch.Tensor | None = None
        tensor: Any = torch.Tensor
        tensor.backward = self._remembering(tensor.backward)

    def _remembering(self, backward: Callable[..., None]) -> Callable[..., None]:
        @wraps(backward)
        def remember(loss: torch.Tensor, *args: Any, **named: Any) -> None:
            if loss.numel() == 1 and not torch.compiler.is_compiling():
                self.value = loss.detach()
            backward(loss, *args, **named)

        return remember


@cache
def last_loss() -> LastLoss:
    """Return this process's instance; losses are remembered from the first call on."""
    return LastLoss()


def means(table: Sequence[Sequence[float]]) -> list[float]:
    """Return each step's mean over the ranks. table: the losses of each rank."""
    return [statistics.fmean(column) for column in zip(*table, strict=True)]


def behaves_otherwise(before: Sequence[float], now: Sequence[float]) -> bool:
    """Return whether losses are no numbers any more, or higher than before by more than they vary.

    before, now: each a step's mean over all ranks. A training's losses fall, or stay if it has converged.
    """
    if not all(math.isfinite(loss) for loss in now):
        return True
    if len(before) < 2 or not now:
        return False
    mean = statistics.fmean(before)
    return statistics.fmean(now) > mean + _SPREADS * statistics.stdev(before) + _TOLERANCE * abs(mean)
