"""Least attained service, in queues: jobs that have consumed little go before jobs that have consumed much.

Tiresias' discretised two-dimensional LAS (Gu et al., NSDI 2019): a job's queue follows from the slot-seconds
(slots x time) that it has consumed. It falls to the next queue at each threshold. Inside a queue, the order
is first in, first out, without preemption. A job that has waited for more than `promoted_after` times its run
time is promoted to the first queue. Tiresias then restarts the count at 0. Here the total wait is compared
with the total run time, which needs no memory: a promoted job stays until its run time has doubled.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from minicluster_hub.scheduling.allocation.free_slots import count_slots
from minicluster_hub.scheduling.base import JobView, Plan, Snapshot
from minicluster_hub.scheduling.planning.ageing import AGE_BOUND_S, Ageing, waited_in_all_s
from minicluster_hub.scheduling.planning.estimates import HOUR_S, executed_s
from minicluster_hub.scheduling.planning.moments import movable
from minicluster_hub.scheduling.planning.serve import serve


@dataclass(frozen=True, slots=True)
class Las:
    """thresholds_slot_s: ascending; there is one more queue than thresholds. promoted_after: above 0."""

    preemptive: ClassVar[bool] = True
    elastic: ClassVar[bool] = False
    thresholds_slot_s: tuple[float, ...] = (0.5 * HOUR_S, 4 * HOUR_S)
    promoted_after: float = 16.0
    age_bound_s: float = AGE_BOUND_S

    def plan(self, snapshot: Snapshot) -> Plan:
        now = snapshot.now

        def rank(job: JobView) -> tuple[int, bool, tuple[float, int]]:
            return self.queue(job, now), not job.runs, job.submit_order

        order = sorted((*snapshot.waiting, *movable(snapshot)), key=rank)
        moments = [moment for job in order for moment in self._moments(job, now)]
        return serve(snapshot, order, ageing=Ageing(self.age_bound_s), moments=moments)

    def queue(self, job: JobView, now: float) -> int:
        """Return the number of a job's queue, 0 for the first."""
        if job.consumed(now) and waited_in_all_s(job, now) > self._promotion_wait_s(job, now):
            return 0
        return bisect_right(self.thresholds_slot_s, job.consumed(now))

    def _moments(self, job: JobView, now: float) -> Iterator[float]:
        """Yield when a job changes its queue."""
        consumed = job.consumed(now)
        if job.runs:
            slots = count_slots(job.places)
            yield from (now + (mark - consumed) / slots for mark in self.thresholds_slot_s if mark > consumed)
            lacking_s = waited_in_all_s(job, now) - self._promotion_wait_s(job, now)
            catches_up = (1 + self._ratio(job)) * job.replicas / job.min_replicas - 1
            if catches_up > 0:
                yield now + lacking_s / catches_up
        elif consumed:
            yield now + self._promotion_wait_s(job, now) - waited_in_all_s(job, now)

    def _ratio(self, job: JobView) -> float:
        """Return the multiple of its run time that a job must have waited to be in the first queue."""
        return self.promoted_after / 2 if job.runs else self.promoted_after

    def _promotion_wait_s(self, job: JobView, now: float) -> float:
        return self._ratio(job) * executed_s(job, now)
