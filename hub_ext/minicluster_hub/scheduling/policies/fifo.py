"""First in, first out, strictly: no job overtakes an earlier one.

A job with a range gets as many replicas as are free now, but not fewer than its minimum.
"""

from __future__ import annotations

from typing import ClassVar

from minicluster_hub.scheduling.base import Plan, Snapshot
from minicluster_hub.scheduling.planning.trial import Trial


class Fifo:
    preemptive: ClassVar[bool] = False
    elastic: ClassVar[bool] = False

    def plan(self, snapshot: Snapshot) -> Plan:
        trial = Trial(snapshot)
        for job in sorted(snapshot.waiting, key=lambda job: job.submit_order):
            if not trial.start(job):
                break
        return Plan(trial.grants())
