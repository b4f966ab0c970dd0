"""Fair shares: owners with the least weighted usage first, with borrowing and reclaiming.

Each owner who has jobs is entitled to a share of the slots by weight, and may borrow slots that others do not
use. First come the jobs within their owners' shares, then the borrowers; within both, jobs of the owner with
the least weighted usage. Old usage counts less, and the slots that this plan gives count too. A job within
its owner's share preempts borrowers, those of the owner with the most usage first. If a large gang within the
share has waited for some hours, slots are reserved for it until it fits; otherwise small jobs would starve
it. Kay and Lauder, "A Fair Share Scheduler", CACM 31(1), 1988; half-lives as in Slurm's multifactor priority;
shares, borrowing and reclaiming as in Hadoop YARN's capacity scheduler and NVIDIA's KAI scheduler.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from minicluster_hub.scheduling.base import JobView, Plan, Snapshot
from minicluster_hub.scheduling.planning.ageing import AGE_BOUND_S, Ageing
from minicluster_hub.scheduling.planning.estimates import HOUR_S
from minicluster_hub.scheduling.planning.moments import movable
from minicluster_hub.scheduling.planning.serve import serve
from minicluster_hub.scheduling.planning.shares import borrowing, by_turns, standings


@dataclass(frozen=True, slots=True)
class FairShare:
    """charged_s: usage in seconds that each slot counts at once if it is held now or given by the plan.

    kept_after_s: wait after which slots are reserved for the oldest job within its owner's share.
    """

    preemptive: ClassVar[bool] = True
    elastic: ClassVar[bool] = False
    charged_s: float = HOUR_S
    kept_after_s: float = 12 * HOUR_S
    age_bound_s: float = AGE_BOUND_S

    def plan(self, snapshot: Snapshot) -> Plan:
        beyond = borrowing(snapshot)
        reserved_for = self._reserved_for(snapshot, beyond)

        def preemption_class(job: JobView) -> int:
            return int(job.job_id in beyond)

        return serve(
            snapshot,
            sorted(
                self._by_standing(snapshot), key=lambda job: (preemption_class(job), job is not reserved_for)
            ),
            preemption_class=preemption_class,
            reserves=lambda job: job is reserved_for,
            ageing=Ageing(self.age_bound_s),
            moments=[job.since + self.kept_after_s for job in snapshot.waiting],
        )

    def _by_standing(self, snapshot: Snapshot) -> Iterator[JobView]:
        """Yield the running and then the waiting jobs, both in the order of their owners' usage."""
        standing = standings(snapshot, self.charged_s)
        yield from sorted(
            movable(snapshot), key=lambda job: (standing[job.owner], job.since, job.submit_order)
        )
        yield from by_turns(snapshot, standing, self.charged_s)

    def _reserved_for(self, snapshot: Snapshot, beyond: frozenset[int]) -> JobView | None:
        within = (job for job in snapshot.waiting if job.job_id not in beyond)
        waiting_long = (job for job in within if job.waited_s(snapshot.now) >= self.kept_after_s)
        return min(waiting_long, key=lambda job: job.submit_order, default=None)
