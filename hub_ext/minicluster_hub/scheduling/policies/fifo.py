"""First in, first out, strictly: who came first starts first, and nobody overtakes.

A job that takes a range of nodes gets as many as are free now, not fewer than its minimum.
"""

from __future__ import annotations

from minicluster_hub.scheduling.base import Grant, Snapshot, fitting_nodes, give, take
from minicluster_hub.scheduling.placement.pack import Pack


class Fifo:
    def plan(self, snapshot: Snapshot) -> tuple[Grant, ...]:
        free = give(snapshot.free, snapshot.warm)
        grants: list[Grant] = []
        for request in sorted(snapshot.waiting, key=lambda job: (job.submitted_at, job.job_id)):
            nodes = min(request.max_nodes, fitting_nodes(free, request.slots_per_node))
            places = Pack().place(request, nodes, free) if nodes >= request.min_nodes else None
            if places is None:
                break
            grants.append(Grant(request.job_id, nodes))
            free = take(free, places)
        return tuple(grants)
