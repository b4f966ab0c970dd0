"""Shortest remaining time first: the jobs that end soonest run, and preempt longer ones.

The remaining time is known from the logged progress; without progress, it is estimated from the time limit
and the run time so far (`estimates.likely_remaining_s`). A waiting job's restart counts as work, so that no
job is preempted for a smaller gain than that. It has the least average completion time on one machine:
Schrage, "A Proof of the Optimality of the Shortest Remaining Processing Time Discipline", Operations Research
16(3), 1968. It would starve long jobs; the ageing rule prevents that, unless `age_bound_s` is inf.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from minicluster_hub.scheduling.base import JobView, Plan, Snapshot
from minicluster_hub.scheduling.planning.ageing import AGE_BOUND_S, Ageing
from minicluster_hub.scheduling.planning.estimates import HOUR_S, likely_remaining_s, overtaken_at
from minicluster_hub.scheduling.planning.moments import movable
from minicluster_hub.scheduling.planning.serve import serve


@dataclass(frozen=True, slots=True)
class Srtf:
    """unknown_s: assumed remaining time of a job without other data."""

    preemptive: ClassVar[bool] = True
    elastic: ClassVar[bool] = False
    unknown_s: float = HOUR_S
    age_bound_s: float = AGE_BOUND_S

    def plan(self, snapshot: Snapshot) -> Plan:
        now, running = snapshot.now, movable(snapshot)

        def left_s(job: JobView) -> float:
            return likely_remaining_s(job, now, self.unknown_s) + (0.0 if job.runs else job.restart_cost_s)

        order = sorted((*snapshot.waiting, *running), key=lambda job: (left_s(job), job.submit_order))
        moments = overtaken_at(running, map(left_s, snapshot.waiting), now, self.unknown_s)
        return serve(snapshot, order, ageing=Ageing(self.age_bound_s), moments=moments)
