"""Fair shares: owners in the order of what they have had by weight, with borrowing and taking back.

Each owner who has jobs here is entitled to a share of the slots by weight, and borrows what others leave.
First come the jobs within their owners' shares, then those that borrow; among them, whose owner has had
least by weight: old use counts less, and what this plan gives counts too. A job within its owner's share
takes slots from borrowers that may be moved, from the greatest first. When a large gang within the share has
waited for some hours, slots are kept for it until it fits, or those that fit at once would starve it.
Kay and Lauder, "A Fair Share Scheduler", CACM 31(1), 1988; half-lives as in Slurm's multifactor priority;
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
    """`charged_s`: a slot that is held, or given by the plan, counts as so much use already.

    kept_after_s: slots are kept for the oldest job within its owner's share that has waited for so long.
    """

    moves_running: ClassVar[bool] = True
    elastic: ClassVar[bool] = False
    charged_s: float = HOUR_S
    kept_after_s: float = 12 * HOUR_S
    age_bound_s: float = AGE_BOUND_S

    def plan(self, snapshot: Snapshot) -> Plan:
        beyond = borrowing(snapshot)
        kept_for = self._kept_for(snapshot, beyond)

        def level(job: JobView) -> int:
            return int(job.job_id in beyond)

        return serve(
            snapshot,
            sorted(self._by_standing(snapshot), key=lambda job: (level(job), job is not kept_for)),
            level=level,
            reserves=lambda job: job is kept_for,
            ageing=Ageing(self.age_bound_s),
            moments=[job.since + self.kept_after_s for job in snapshot.waiting],
        )

    def _by_standing(self, snapshot: Snapshot) -> Iterator[JobView]:
        """Yield those that run and those that wait, each in the order of what their owners have had."""
        standing = standings(snapshot, self.charged_s)
        yield from sorted(movable(snapshot), key=lambda job: (standing[job.owner], job.since, job.turn))
        yield from by_turns(snapshot, standing, self.charged_s)

    def _kept_for(self, snapshot: Snapshot, beyond: frozenset[int]) -> JobView | None:
        within = (job for job in snapshot.waiting if job.job_id not in beyond)
        patient = (job for job in within if job.waited_s(snapshot.now) >= self.kept_after_s)
        return min(patient, key=lambda job: job.turn, default=None)
