"""EASY backfilling: first in, first out, and who does not delay the head may overtake it.

The first job that does not fit gets a reservation: the moment when enough slots are free if all that run now
last until their time limits. A later job starts before it if it ends by then, by its own limit, or takes only
slots that the head leaves. A job without a limit is taken to run for a day (`estimates.ASSUMED_RUN_S`).
Lifka, "The ANL/IBM SP Scheduling System", JSSPP 1995. The shortest of those that may overtake go first:
Tsafrir, Etsion and Feitelson, "Backfilling Using System-Generated Predictions", IEEE TPDS 18(6), 2007.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from minicluster_hub.scheduling.base import Plan, Snapshot
from minicluster_hub.scheduling.planning.estimates import latest_end
from minicluster_hub.scheduling.planning.trial import Trial


@dataclass(frozen=True, slots=True)
class Backfill:
    """`shortest_first`: off, those that may overtake go in the order of their arrival, as in EASY."""

    moves_running: ClassVar[bool] = False
    elastic: ClassVar[bool] = False
    shortest_first: bool = True

    def plan(self, snapshot: Snapshot) -> Plan:
        trial = Trial(snapshot)
        queue = sorted(snapshot.waiting, key=lambda job: job.turn)
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
        return Plan(trial.grants(), in_turn=False, kept=trial.reserved())
