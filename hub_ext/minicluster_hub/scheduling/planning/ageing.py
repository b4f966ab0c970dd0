"""Ageing: no job waits for ever. One rule for all policies whose own order could starve a job.

An overdue job (its wait comes near the bound) goes first, the oldest first, whatever the policy's order. It
takes slots from all preemptible jobs that are not overdue. While it does not fit, no job starts that would
delay it. It goes first some time before the bound, since other overdue jobs may have to end before it.

The wait is the time since the submission without the run time. So a job that is started only to be stopped
again keeps its age, and once overdue it runs on. If more is asked for than the cluster has, for long enough,
all jobs become overdue: then the order is first in, first out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from math import inf

from minicluster_hub.scheduling.base import JobView
from minicluster_hub.scheduling.planning.estimates import DAY_S, executed_s

AGE_BOUND_S = 7 * DAY_S

_FIRST_FROM = 0.8
"""The share of the bound after which a job is overdue."""


def waited_in_all_s(job: JobView, now: float) -> float:
    """Return how long a job has waited: its present wait, or all its waits together if that is more."""
    in_all_s = now - job.submitted_at - executed_s(job, now)
    return max(0.0, job.waited_s(now), in_all_s)


@dataclass(frozen=True, slots=True)
class Ageing:
    """bound_s: the longest wait that is allowed; inf: no ageing."""

    bound_s: float = AGE_BOUND_S

    def overdue(self, job: JobView, now: float) -> bool:
        return waited_in_all_s(job, now) > self.bound_s * _FIRST_FROM

    def first(self, order: Iterable[JobView], now: float) -> list[JobView]:
        """Return the overdue jobs, the oldest first, then the others in their order."""
        jobs = list(order)
        if self.bound_s == inf:
            return jobs
        late = sorted((job for job in jobs if self.overdue(job, now)), key=lambda job: job.submit_order)
        ids = {job.job_id for job in late}
        return [*late, *(job for job in jobs if job.job_id not in ids)]

    def with_overdue_first(
        self, preemption_class: Callable[[JobView], float], jobs: Iterable[JobView], now: float
    ) -> Callable[[JobView], float]:
        """Return the classes of these jobs, changed so that overdue jobs may preempt all others."""
        classes = {job.job_id: -inf if self.overdue(job, now) else preemption_class(job) for job in jobs}
        return lambda job: classes[job.job_id]

    def moments(self, waiting: Iterable[JobView], now: float) -> Iterator[float]:
        """Yield when each of these jobs becomes overdue."""
        wait_s = self.bound_s * _FIRST_FROM
        yield from (now + wait_s - waited_in_all_s(job, now) for job in waiting)


NO_AGEING = Ageing(inf)
