"""First in, first out, strictly: who came first starts first, and nobody overtakes.

A job that takes a range gets as many replicas as are free now, not fewer than its minimum.
"""

from __future__ import annotations

from typing import ClassVar

from minicluster_hub.scheduling.base import Plan, Snapshot
from minicluster_hub.scheduling.planning.trial import Trial


class Fifo:
    moves_running: ClassVar[bool] = False
    elastic: ClassVar[bool] = False

    def plan(self, snapshot: Snapshot) -> Plan:
        trial = Trial(snapshot)
        for job in sorted(snapshot.waiting, key=lambda job: job.turn):
            if not trial.start(job):
                break
        return Plan(trial.grants())
