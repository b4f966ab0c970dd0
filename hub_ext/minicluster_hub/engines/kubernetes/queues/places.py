"""Where a granted gang runs: free slots, on as few nodes as it may. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from minicluster_hub.engines.capabilities import Place, PlacedGang, QueueRequest


def taken_slots(placed: Iterable[PlacedGang], granted: Iterable[Iterable[Place]]) -> set[tuple[str, int]]:
    """Return the slots of gangs, and of what was granted and has not started yet."""
    places = [place for gang in placed for place in gang.tasks.values()]
    places += [place for one in granted for place in one]
    return {(place.node, slot) for place in places for slot in place.slots}


def choose(
    request: QueueRequest,
    replicas: int,
    slots: Mapping[str, int],
    taken: Collection[tuple[str, int]],
) -> tuple[Place, ...]:
    """Return places for that many replicas; () if there are not enough free slots.

    slots: how many each node has that takes jobs. Nodes with the fewest free slots come first, so that
    large jobs find whole nodes.
    """
    free = {
        node: [slot for slot in range(count) if (node, slot) not in taken]
        for node, count in slots.items()
        if node not in request.without
    }
    found: list[Place] = []
    for node in sorted(free, key=lambda node: (len(free[node]), node)):
        most = len(free[node]) // request.slots_per_replica
        here = min(most, 1 if request.one_per_node else most, replicas - _count(found, request))
        if here > 0:
            found.append(Place(node, tuple(free[node][: here * request.slots_per_replica])))
    return tuple(found) if _count(found, request) == replicas else ()


def _count(places: Iterable[Place], request: QueueRequest) -> int:
    return sum(len(place.slots) for place in places) // request.slots_per_replica
