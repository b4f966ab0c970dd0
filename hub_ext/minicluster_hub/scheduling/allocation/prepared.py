"""Where a gang is started before there is a job: only on slots that nobody holds or waits for. Pure."""

from __future__ import annotations

from collections.abc import Collection

from minicluster_hub.scheduling.allocation.free_slots import Places
from minicluster_hub.scheduling.base import Snapshot


def prepared_places(snapshot: Snapshot, owner: str, reserved: Collection[tuple[str, int]]) -> Places:
    """Return a free slot of each node that has one, as a cell takes without options; () if others wait.

    reserved: slots that the owner may not hold. An owner gets no second gang.
    """
    if snapshot.waiting or any(gang.owner == owner for gang in snapshot.warm):
        return ()
    free = snapshot.free.copy()
    for gang in snapshot.warm:
        free.remove(gang.places)
    usable = ((node, [slot for slot in free.on(node) if (node, slot) not in reserved]) for node in free.names)
    return tuple((node, (min(slots),)) for node, slots in usable if slots)
