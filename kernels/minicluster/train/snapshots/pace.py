"""When the next snapshot is due, where the cell leaves that to us: pure.

A snapshot is worth less than the time that it costs when it comes too often. The interval is chosen
from the measured cost, so that snapshots take at most SHARE of the time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

SHARE = 0.0125
_LEAST_S = 2.0
"""For small models, whose snapshots disturb the caches and the interpreter more than they take CPU time."""
_GUESSED_BYTES_PER_S = 400e6
_GUESSED_LEAST_S = 0.02


@dataclass(frozen=True)
class Plan:
    """take: make a snapshot at this call. look_at: the number of the call at which to plan again."""

    take: bool
    look_at: int


class Pace:
    """Plans from the times of the calls. `started_at` counts as the time of a snapshot."""

    def __init__(self, started_at: float) -> None:
        self.cost_s = 0.0
        self._taken_at = started_at
        self._first: tuple[int, float] | None = None

    @property
    def interval_s(self) -> float:
        return max(_LEAST_S, self.cost_s / SHARE)

    def plan(self, call: int, now: float, size_bytes: int) -> Plan:
        """Say what to do at this call, at the time `now`.

        size_bytes: of the state, from which the first snapshot's cost is guessed.
        """
        self.cost_s = self.cost_s or _GUESSED_LEAST_S + size_bytes / _GUESSED_BYTES_PER_S
        first_call, first_at = self._first = self._first or (call, now)
        step_s = (now - first_at) / (call - first_call) if call > first_call else 0.0
        left_s = self._taken_at + self.interval_s - now
        take = left_s <= step_s / 2
        if take:
            self._taken_at, left_s = now, self.interval_s
        if step_s == 0.0:
            return Plan(take, call + 1)
        # Not far beyond what was seen so far: the first steps are slower than the others.
        seen = max(1, call - first_call)
        return Plan(take, call + min(seen, max(1, math.floor(left_s / step_s + 0.5))))
