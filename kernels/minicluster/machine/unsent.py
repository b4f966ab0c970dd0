"""The readings that the job service does not have yet; the oldest are dropped when it stays away."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

from minicluster.wire import MachineReading, RankReading

_REFUSED_S = 60.0
R = TypeVar("R", MachineReading, RankReading)


class UnsentReadings(Generic[R]):
    """For one report at a time, which has at most `most` readings."""

    def __init__(self, most: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._readings: deque[tuple[float, R]] = deque(maxlen=most)
        self._sent_until = 0.0
        self._silent_until = 0.0

    def add(self, *readings: R) -> None:
        now = self._clock()
        self._readings.extend((now, reading) for reading in readings)

    def take(self) -> tuple[R, ...]:
        """Return what the next report is to have, each with its age."""
        now = self._clock()
        if now < self._silent_until:
            return ()
        self._sent_until = now
        return tuple(reading.model_copy(update={"ago_s": now - at}) for at, reading in self._readings)

    def accepted(self) -> None:
        """Drop what the last report had: the service has it."""
        while self._readings and self._readings[0][0] <= self._sent_until:
            self._readings.popleft()

    def refused(self) -> None:
        """Send none for a while: during an upgrade, the last release may lead, which knows no readings."""
        self._silent_until = self._clock() + _REFUSED_S
