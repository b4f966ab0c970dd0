"""The service's time of day, as steady as a stop watch: set clocks must not end jobs or hold them back.

Durations are taken between times that were stored, so a clock that is set would look like time that
passed. Here it does not: the difference is caught up little by little, and no time comes twice.
"""

from __future__ import annotations

import time
from collections.abc import Callable

CATCH_UP = 0.1
"""The share of the time that passes by which this clock may run faster or slower."""


class SteadyClock:
    """Call it for seconds since the epoch. It begins with `wall`, and runs by `monotonic`."""

    def __init__(
        self, wall: Callable[[], float] = time.time, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._wall = wall
        self._monotonic = monotonic
        self._now = wall()
        self._told_at = monotonic()

    def __call__(self) -> float:
        told_at = self._monotonic()
        passed_s, self._told_at = told_at - self._told_at, told_at
        behind_s = self._wall() - (self._now + passed_s)
        most_s = CATCH_UP * passed_s
        self._now += passed_s + max(-most_s, min(most_s, behind_s))
        return self._now
