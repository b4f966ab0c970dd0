"""Round robin in time: at the end of each quantum, the gangs that waited longest get the slots.

All gangs are switched at the same moments, the multiples of the quantum, so that no slot is idle until a
large gang has collected enough of them. Within a quantum, a job gets only free slots and those of gangs that
have run for a whole quantum. The longest wait goes first, so each gang runs after a bounded number of quanta.
Ousterhout, "Scheduling Techniques for Concurrent Systems", ICDCS 1982; for training jobs Xiao et al.,
"Gandiva", OSDI 2018.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import floor
from typing import ClassVar

from minicluster_hub.scheduling.base import JobView, Plan, Snapshot
from minicluster_hub.scheduling.planning.moments import movable
from minicluster_hub.scheduling.planning.serve import serve


@dataclass(frozen=True, slots=True)
class TimeSlice:
    """quantum_s: should be long compared with a restart, and short compared with a user's patience."""

    preemptive: ClassVar[bool] = True
    elastic: ClassVar[bool] = False
    quantum_s: float = 900.0

    def plan(self, snapshot: Snapshot) -> Plan:
        begun_at = floor(snapshot.now / self.quantum_s) * self.quantum_s
        had_theirs = [job for job in movable(snapshot) if job.since < begun_at]
        order = (*sorted(snapshot.waiting, key=_longest_first), *sorted(had_theirs, key=_latest_first))
        return serve(snapshot, order, moments=[begun_at + self.quantum_s])


def _longest_first(job: JobView) -> tuple[float, tuple[float, int]]:
    return job.since, job.submit_order


def _latest_first(job: JobView) -> tuple[float, tuple[float, int]]:
    return -job.since, job.submit_order
