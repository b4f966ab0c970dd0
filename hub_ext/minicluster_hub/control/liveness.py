"""Failure detector: how long each agent has been silent while the service was able to listen.

A service that was frozen, or busy with one thing for a while, has read no reports: they wait in its sockets.
A service that cannot reach its database cannot tell which agent reports. Such times do not count as silence:
otherwise the service would declare all agents lost.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping

LOOK_S = 0.25
"""How often the service records that it listens, while there are agents."""
INATTENTIVE_S = 1.0
"""If two such records are further apart, silence counts only from the second one."""


class Liveness:
    """Times are in seconds of `clock`, which is monotonic: jumps of the machine's time do no harm.

    unreached: by task, the addresses that its agent cannot reach.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.unreached: Mapping[int, tuple[str, ...]] = {}
        self._clock = clock
        self._last_report: dict[int, float] = {}
        self._alive_at = self._listening_since = clock()

    def record_service_alive(self) -> None:
        """Record that the service's event loop runs."""
        self._listening_since, self._alive_at = self._since(), self._clock()

    def reset_silence(self) -> None:
        """Start counting the silence of all agents anew, since reports may have been lost."""
        self._listening_since = self._clock()

    def record_heartbeat(self, task_id: int, unreached: tuple[str, ...] = ()) -> bool:
        """Record a report of a task's agent; return whether the addresses that it cannot reach changed."""
        self._last_report[task_id] = self._clock()
        changed = self.unreached.get(task_id, ()) != unreached
        if changed:
            self.unreached = {**self.unreached, task_id: unreached}
        return changed

    def keep_only(self, task_ids: Collection[int]) -> None:
        """Forget all other tasks."""
        self._last_report = {task_id: at for task_id, at in self._last_report.items() if task_id in task_ids}
        self.unreached = {
            task_id: addresses for task_id, addresses in self.unreached.items() if task_id in task_ids
        }

    def silence_s(self, task_ids: Iterable[int]) -> dict[int, float]:
        """Return the silence of each of these tasks, in seconds."""
        now, since = self._clock(), self._since()
        return {task_id: now - max(self._last_report.get(task_id, since), since) for task_id in task_ids}

    def _since(self) -> float:
        """Return since when the service has listened without a break."""
        now = self._clock()
        return now if now - self._alive_at > INATTENTIVE_S else self._listening_since
