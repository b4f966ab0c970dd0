"""The next node in turn, as Schedulearn distributes its jobs over servers.

The turn follows from the job's number alone: job n begins at node n modulo the number of nodes. So successive
jobs begin at successive nodes, without any memory. Schedulearn's jobs never span servers: the first node in
turn with room for the whole gang gets it. A gang that fits on no single node is placed on several, in the
same order.
"""

from __future__ import annotations

from minicluster_hub.scheduling.allocation.filling import fill
from minicluster_hub.scheduling.allocation.free_slots import FreeSlots, Places
from minicluster_hub.scheduling.base import JobView, Topology


class RoundRobin:
    def place(self, job: JobView, replicas: int, free: FreeSlots, topology: Topology) -> Places | None:
        if (
            free.replicas_that_fit(job.slots_per_replica, one_replica_per_node=job.one_replica_per_node)
            < replicas
        ):
            return None
        nodes = free.names
        first = job.job_id % len(nodes)
        turn = (*nodes[first:], *nodes[:first])
        if job.slots_per_replica < 1:  # A divided slot is filled first, whose turn it is or not.
            turn = tuple(sorted(turn, key=lambda node: free.numbers(node) == free.on(node)))
        if not job.one_replica_per_node:
            whole = (node for node in turn if free.room(node, job.slots_per_replica) >= replicas)
            turn = next(((node,) for node in whole), turn)
        return fill(job, replicas, free, turn)
