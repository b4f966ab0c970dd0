"""The service's clock, which never jumps: setting the system's clock must not end or delay jobs.

Durations are differences of stored times, so a jump of the clock would count as time that passed. This clock
catches up with the system's clock gradually, and never goes back.
"""

from __future__ import annotations

import time
from collections.abc import Callable

CATCH_UP = 0.1
"""How much faster or slower this clock may run, as a share of real time."""


class SteadyClock:
    """Returns seconds since the epoch. It starts with the time of `wall`, and advances with `monotonic`."""

    def __init__(
        self, wall: Callable[[], float] = time.time, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._wall = wall
        self._monotonic = monotonic
        self._now = wall()
        self._called_at = monotonic()

    def __call__(self) -> float:
        called_at = self._monotonic()
        passed_s, self._called_at = called_at - self._called_at, called_at
        behind_s = self._wall() - (self._now + passed_s)
        most_s = CATCH_UP * passed_s
        self._now += passed_s + max(-most_s, min(most_s, behind_s))
        return self._now
