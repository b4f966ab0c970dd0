"""Nobody waits for ever: the one rule for all policies whose own order could let a job wait without end.

A job whose wait comes near the bound goes first, the oldest first, whatever the policy thinks of it, and
takes slots from all that may be moved and are not as old; while it finds no room, nobody starts before it who
could delay it. It goes first some time before the bound, since others as old may have to end first.
The wait is all that it had since it came in, less what it ran: a job that is started only to be stopped again
keeps its age, and once old it runs on. Who asks for more than the cluster has, all together, makes everybody
old: then this is first in, first out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from math import inf

from minicluster_hub.scheduling.base import JobView
from minicluster_hub.scheduling.planning.estimates import DAY_S, executed_s

AGE_BOUND_S = 7 * DAY_S

_FIRST_FROM = 0.8
"""The part of the bound after which a job goes first."""


def waited_in_all_s(job: JobView, now: float) -> float:
    """Return how long it has waited by now: at a stretch, or in all if that is more."""
    in_all_s = now - job.submitted_at - executed_s(job, now)
    return max(0.0, job.waited_s(now), in_all_s)


@dataclass(frozen=True, slots=True)
class Ageing:
    """`bound_s`: nobody is to wait longer; inf: no ageing."""

    bound_s: float = AGE_BOUND_S

    def overdue(self, job: JobView, now: float) -> bool:
        return waited_in_all_s(job, now) > self.bound_s * _FIRST_FROM

    def first(self, order: Iterable[JobView], now: float) -> list[JobView]:
        """Return the jobs in the same order, but those before the others that are overdue."""
        jobs = list(order)
        if self.bound_s == inf:
            return jobs
        late = sorted((job for job in jobs if self.overdue(job, now)), key=lambda job: job.turn)
        ids = {job.job_id for job in late}
        return [*late, *(job for job in jobs if job.job_id not in ids)]

    def above(
        self, level: Callable[[JobView], float], jobs: Iterable[JobView], now: float
    ) -> Callable[[JobView], float]:
        """Return the levels of these jobs with the overdue ones on top: they take from all others."""
        levels = {job.job_id: -inf if self.overdue(job, now) else level(job) for job in jobs}
        return lambda job: levels[job.job_id]

    def moments(self, waiting: Iterable[JobView], now: float) -> Iterator[float]:
        """Yield when each of them will be overdue."""
        wait_s = self.bound_s * _FIRST_FROM
        yield from (now + wait_s - waited_in_all_s(job, now) for job in waiting)


NO_AGEING = Ageing(inf)
