"""DLTAP, for comparison: a replica goes where most of its job already is.

Qiao, Li and Wu, "DLTAP: A Network-efficient Scheduling Method for Distributed Deep Learning Workload in
Containerized Cluster Environment" (ITM Web of Conferences 12, 2017). The tasks of a job are placed one after
the other on the node with the highest score: int(10 x tasks of the job on it / tasks of the job + 1). Among
equal scores, the emptiest node wins, as in the paper's cluster. So the first replica goes to the emptiest
node even if the whole gang fits better on another one. The paper places a parameter server beside spread
workers; here all replicas are alike.
"""

from __future__ import annotations

from itertools import islice

from minicluster_hub.scheduling.allocation.filling import one_by_one
from minicluster_hub.scheduling.allocation.free_slots import FreeSlots, Places
from minicluster_hub.scheduling.base import JobView, Topology


class Dltap:
    def place(self, job: JobView, replicas: int, free: FreeSlots, topology: Topology) -> Places | None:
        total = job.replicas + replicas
        here = (node for node, _ in job.places if free.room(node, job.slots_per_replica))
        roomiest = islice(free.roomy_nodes(job.slots_per_replica), replicas)
        nodes = dict.fromkeys((*here, *roomiest))
        return one_by_one(job, replicas, free, nodes, lambda there, left: (-score(there, total), -left))


def score(there: int, total: int) -> int:
    """Return a node's score, given how many of the job's replicas are on it."""
    return int(10 * there / total + 1)
