"""The highest priority first (1-99), and in the order of arrival among equals.

A job takes slots from running ones of a lower priority that may be moved, from the lowest and latest first,
and from no more of them than it needs. The first that does not fit is not delayed by those after it.
Preemption by priority as in Slurm (Yoo, Jette, Grondona, JSSPP 2003) and Borg (Verma et al., EuroSys 2015).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from minicluster_hub.scheduling.base import JobView, Plan, Snapshot
from minicluster_hub.scheduling.planning.ageing import AGE_BOUND_S, Ageing
from minicluster_hub.scheduling.planning.moments import movable
from minicluster_hub.scheduling.planning.serve import everybody, serve


@dataclass(frozen=True, slots=True)
class Priority:
    moves_running: ClassVar[bool] = True
    elastic: ClassVar[bool] = False
    age_bound_s: float = AGE_BOUND_S

    def plan(self, snapshot: Snapshot) -> Plan:
        order = sorted((*snapshot.waiting, *movable(snapshot)), key=lambda job: (_level(job), job.turn))
        return serve(snapshot, order, level=_level, reserves=everybody, ageing=Ageing(self.age_bound_s))


def _level(job: JobView) -> int:
    return -job.priority
