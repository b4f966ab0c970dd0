"""How long each agent has been silent, as far as the service itself was listening.

A service that was frozen, or busy with one thing for a while, has heard nobody: the reports wait at its
door. One whose database is away cannot tell who speaks. Such a time must not count as the agents'
silence, or it would take all of them for lost.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

LOOK_S = 0.25
"""How often the service notes that it listens, while there is anybody to hear."""
INATTENTIVE_S = 1.0
"""A longer time between two such notes was spent elsewhere."""


class Liveness:
    """Times in seconds by `clock`, which is monotonic: jumps of the machine's time do no harm."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._heard: dict[int, float] = {}
        self._noted = self._listening_since = clock()

    def note(self) -> None:
        """Say that the service's loop turns."""
        now = self._clock()
        if now - self._noted > INATTENTIVE_S:
            self._listening_since = now
        self._noted = now

    def miss(self) -> None:
        """Say that somebody spoke and could not be understood: all silence counts from here on."""
        self._listening_since = self._clock()

    def hear(self, task_id: int) -> None:
        """Say that a task's agent has spoken."""
        self._heard[task_id] = self._clock()

    def silence_s(self, task_ids: Iterable[int]) -> dict[int, float]:
        """Return each task's silence; forget all others."""
        self.note()
        now, since = self._noted, self._listening_since
        self._heard = {task_id: self._heard.get(task_id, since) for task_id in task_ids}
        return {task_id: now - max(at, since) for task_id, at in self._heard.items()}
