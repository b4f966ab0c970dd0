"""Elastic FIFO: each job gets its minimum in the order of arrival, then one more each in turn.

No job gets more than its maximum. Running jobs shrink so that others can start, and grow again when some end
if that is worth a restart.
The rule of Voda, an elastic training scheduler on Kubernetes (2021); Schedulearn has one by the same name.
"""

from __future__ import annotations

from minicluster_hub.scheduling.base import Plan, Snapshot
from minicluster_hub.scheduling.planning.sharing import Sharing, elastic


class ElasticFifo(Sharing):
    __slots__ = ()

    def plan(self, snapshot: Snapshot) -> Plan:
        return self.share(snapshot, sorted(elastic(snapshot), key=lambda job: job.submit_order))
