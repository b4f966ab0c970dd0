"""The highest priority (1-99) first, and the order of arrival among equal ones.

A job preempts running jobs of a lower priority, the lowest and latest first, and only as many as it needs.
The first job that does not fit is not delayed by those after it. Preemption by priority as in Slurm (Yoo,
Jette, Grondona, JSSPP 2003) and Borg (Verma et al., EuroSys 2015).
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
    preemptive: ClassVar[bool] = True
    elastic: ClassVar[bool] = False
    age_bound_s: float = AGE_BOUND_S

    def plan(self, snapshot: Snapshot) -> Plan:
        order = sorted(
            (*snapshot.waiting, *movable(snapshot)),
            key=lambda job: (_preemption_class(job), job.submit_order),
        )
        return serve(
            snapshot,
            order,
            preemption_class=_preemption_class,
            reserves=everybody,
            ageing=Ageing(self.age_bound_s),
        )


def _preemption_class(job: JobView) -> int:
    return -job.priority
