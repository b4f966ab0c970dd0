"""How often one user, or one task, may ask: token buckets. Who floods slows itself down, and nobody else."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass

_MOST_KEPT = 10_000


@dataclass(frozen=True, slots=True)
class Rate:
    """per_s: requests that may come for ever. burst: those that may come at once after a pause."""

    per_s: float
    burst: float


class Buckets:
    """One bucket for each who asks; the one that was used least recently is forgotten first."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._levels: OrderedDict[Hashable, tuple[float, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._levels)

    def take(self, key: Hashable, rate: Rate) -> float:
        """Take one request; return 0.0, or in how many seconds there is one. A refused one costs nothing."""
        wait_s = self.wait_s(key, rate)
        if not wait_s:
            self.charge(key, rate, 1.0)
        return wait_s

    def wait_s(self, key: Hashable, rate: Rate) -> float:
        """Return in how many seconds there is one, and take nothing."""
        return max(0.0, 1.0 - self._level(key, rate)) / rate.per_s

    def charge(self, key: Hashable, rate: Rate, more: float) -> None:
        """Take what a request cost more than another one; it may leave a debt."""
        self._keep(key, self._level(key, rate) - more)

    def _level(self, key: Hashable, rate: Rate) -> float:
        level, at = self._levels.get(key, (rate.burst, 0.0))
        return min(rate.burst, level + (self._clock() - at) * rate.per_s)

    def _keep(self, key: Hashable, level: float) -> None:
        self._levels[key] = level, self._clock()
        self._levels.move_to_end(key)
        if len(self._levels) > _MOST_KEPT:
            self._levels.popitem(last=False)
