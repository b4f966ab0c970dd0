"""Best fit: the nodes with the fewest free slots that suffice, so that full nodes stay whole."""

from __future__ import annotations

from minicluster_hub.scheduling.base import FreeSlots, JobRequest, Places


class Pack:
    def place(self, request: JobRequest, nodes: int, free: FreeSlots) -> Places | None:
        fitting = [node for node, slots in free.items() if len(slots) >= request.slots_per_node]
        if len(fitting) < nodes:
            return None
        chosen = sorted(fitting, key=lambda node: (len(free[node]), node))[:nodes]
        return tuple((node, free[node][: request.slots_per_node]) for node in sorted(chosen))
