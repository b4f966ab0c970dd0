"""First in, first out, strictly: who came first starts first, and nobody overtakes.

A job that takes a range gets as many chunks as are free now, not fewer than its minimum.
"""

from __future__ import annotations

from typing import ClassVar

from minicluster_hub.scheduling.base import Grant, Plan, Snapshot
from minicluster_hub.scheduling.planning.filling import as_they_are, start_now


class Fifo:
    moves_running: ClassVar[bool] = False
    elastic: ClassVar[bool] = False

    def plan(self, snapshot: Snapshot) -> Plan:
        free = snapshot.obtainable()
        grants: list[Grant] = as_they_are(snapshot.running)
        for job in sorted(snapshot.waiting, key=lambda job: job.turn):
            grant = start_now(job, free)
            if grant is None:
                break
            grants.append(grant)
        return Plan(tuple(grants))
