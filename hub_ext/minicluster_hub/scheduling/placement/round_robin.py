"""The next node in turn, as Schedulearn deals its jobs out to servers.

Whose turn it is follows from the job alone: job n begins at node n modulo the number of nodes. Jobs that
arrive one after the other so begin at nodes that follow each other, and nothing has to be remembered.
Schedulearn's jobs never span servers: the first node in turn with room for the whole gang gets it. Only a
gang that fits nowhere whole is laid over several nodes, in the same turn.
"""

from __future__ import annotations

from minicluster_hub.scheduling.allocation.filling import fill
from minicluster_hub.scheduling.allocation.free_slots import FreeSlots, Places
from minicluster_hub.scheduling.base import JobView, Topology


class RoundRobin:
    def place(self, job: JobView, replicas: int, free: FreeSlots, topology: Topology) -> Places | None:
        if free.replicas_that_fit(job.slots_per_replica, scatter=job.scatter) < replicas:
            return None
        nodes = free.names
        first = job.job_id % len(nodes)
        turn = (*nodes[first:], *nodes[:first])
        if not job.scatter:
            whole = (node for node in turn if len(free.on(node)) >= replicas * job.slots_per_replica)
            turn = next(((node,) for node in whole), turn)
        return fill(job, replicas, free, turn)
