"""Most free first: each replica goes where most slots are free, as Kubernetes' LeastAllocated places pods.

It balances load and heat. It also splits gangs, so that more of their gradients cross the network.
"""

from __future__ import annotations

from itertools import islice

from minicluster_hub.scheduling.allocation.filling import one_by_one
from minicluster_hub.scheduling.allocation.free_slots import FreeSlots, Places
from minicluster_hub.scheduling.base import JobView, Topology


class Spread:
    def place(self, job: JobView, replicas: int, free: FreeSlots, topology: Topology) -> Places | None:
        roomiest = islice(free.roomy_nodes(job.slots_per_replica), replicas)
        return one_by_one(job, replicas, free, roomiest, lambda _, left: -left)
