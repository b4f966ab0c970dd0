"""How long each agent has been silent, as far as the service itself was listening.

A service that was frozen, or busy with one thing for a while, has read no reports: they wait in its sockets.
A service whose database is away cannot tell which agent reports. Such a time must not count as the agents'
silence: the service would take all of them for lost.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping

LOOK_S = 0.25
"""How often the service notes that it listens, while there are agents."""
INATTENTIVE_S = 1.0
"""If two such notes are further apart, silence counts only from the second one."""


class Liveness:
    """Times in seconds by `clock`, which is monotonic: jumps of the machine's time do no harm.

    unreached: by task, the addresses that its agent reported as out of reach.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.unreached: Mapping[int, tuple[str, ...]] = {}
        self._clock = clock
        self._last_report: dict[int, float] = {}
        self._noted = self._listening_since = clock()

    def note(self) -> None:
        """Note that the service's event loop turns."""
        self._listening_since, self._noted = self._since(), self._clock()

    def miss(self) -> None:
        """Note that a report may have been lost: all silence counts from now on."""
        self._listening_since = self._clock()

    def receive(self, task_id: int, unreached: tuple[str, ...] = ()) -> bool:
        """Note a report of a task's agent; return whether the addresses out of its reach changed."""
        self._last_report[task_id] = self._clock()
        changed = self.unreached.get(task_id, ()) != unreached
        if changed:
            self.unreached = {**self.unreached, task_id: unreached}
        return changed

    def keep_only(self, task_ids: Collection[int]) -> None:
        """Forget all other tasks."""
        self._last_report = {task_id: at for task_id, at in self._last_report.items() if task_id in task_ids}
        self.unreached = {task_id: them for task_id, them in self.unreached.items() if task_id in task_ids}

    def silence_s(self, task_ids: Iterable[int]) -> dict[int, float]:
        """Return the silence of each of these tasks, in seconds."""
        now, since = self._clock(), self._since()
        return {task_id: now - max(self._last_report.get(task_id, since), since) for task_id in task_ids}

    def _since(self) -> float:
        """Return since when the service has listened without a break."""
        now = self._clock()
        return now if now - self._noted > INATTENTIVE_S else self._listening_since
