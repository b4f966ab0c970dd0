"""Best fit: the nodes with the fewest free slots that suffice, so that empty nodes stay whole."""

from __future__ import annotations

from minicluster_hub.scheduling.allocation.filling import best_fit
from minicluster_hub.scheduling.allocation.free_slots import FreeSlots, Places
from minicluster_hub.scheduling.base import JobView, Topology


class Pack:
    def place(self, job: JobView, replicas: int, free: FreeSlots, topology: Topology) -> Places | None:
        return best_fit(job, replicas, free)
