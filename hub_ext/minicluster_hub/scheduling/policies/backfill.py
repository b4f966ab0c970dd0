"""EASY backfilling: first in, first out, but jobs that do not delay the head may overtake it.

The first job that does not fit gets a reservation: it starts when enough slots are free if all running jobs
last until their time limits. A later job starts before it if its own limit ends it by then, or if it uses
only slots that the head does not need. A job without a limit counts as a day long
(`estimates.ASSUMED_RUN_S`). Lifka, "The ANL/IBM SP Scheduling System", JSSPP 1995. Of the jobs that may
overtake, the shortest go first: Tsafrir, Etsion and Feitelson, "Backfilling Using System-Generated
Predictions", IEEE TPDS 18(6), 2007.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from minicluster_hub.scheduling.base import Plan, Snapshot
from minicluster_hub.scheduling.planning.estimates import latest_end
from minicluster_hub.scheduling.planning.trial import Trial


@dataclass(frozen=True, slots=True)
class Backfill:
    """shortest_first: if off, the jobs that may overtake go in the order of their submission, as in EASY."""

    preemptive: ClassVar[bool] = False
    elastic: ClassVar[bool] = False
    shortest_first: bool = True

    def plan(self, snapshot: Snapshot) -> Plan:
        trial = Trial(snapshot)
        queue = sorted(snapshot.waiting, key=lambda job: job.submit_order)
        blocked = next((place for place, job in enumerate(queue) if not trial.start(job)), len(queue))
        behind = queue[blocked + 1 :]
        if behind:
            trial.reserve(queue[blocked])
        if self.shortest_first:
            behind.sort(key=lambda job: latest_end(job, snapshot.now))
        for job in behind:
            if not trial.free.count:
                break
            trial.start(job)
        return Plan(trial.grants(), head_blocks=False, reserved=trial.reserved())
