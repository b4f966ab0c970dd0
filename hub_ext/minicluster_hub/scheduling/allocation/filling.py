"""Fills nodes in a given order; all placements use it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from heapq import heapify, heappop, heappush
from typing import Any

from minicluster_hub.jobs.slot_numbers import total
from minicluster_hub.scheduling.allocation.free_slots import FreeSlots, Places
from minicluster_hub.scheduling.base import JobView


def fill(job: JobView, replicas: int, free: FreeSlots, nodes: Iterable[str]) -> Places | None:
    """Put as many replicas on each node as fit, or one if each needs a node of its own."""
    places: list[tuple[str, tuple[int, ...]]] = []
    missing = replicas
    for node in nodes:
        if not missing:
            break
        room = free.room(node, job.slots_per_replica)
        here = min(missing, room, 1) if job.one_replica_per_node else min(missing, room)
        if here:
            places.append((node, free.first(node, here, job.slots_per_replica)))
            missing -= here
    return tuple(sorted(places)) if not missing else None


def best_fit(job: JobView, replicas: int, free: FreeSlots) -> Places | None:
    """Fill the nodes with the fewest free slots that suffice, so that empty nodes stay whole."""
    return fill(job, replicas, free, free.nodes(job.slots_per_replica))


def one_by_one(
    job: JobView, replicas: int, free: FreeSlots, nodes: Iterable[str], order: Callable[[int, float], Any]
) -> Places | None:
    """Place replicas one by one, each on the first node by order(replicas there, slots left there)."""
    each = job.slots_per_replica
    before = {node: int(total(slots) // each) for node, slots in job.places}
    heap = [(order(before.get(node, 0), free.usable(node, each)), node) for node in nodes]
    heapify(heap)
    here: Counter[str] = Counter()
    for _ in range(replicas):
        if not heap:
            return None
        _, node = heappop(heap)
        here[node] += 1
        left = free.usable(node, each) - here[node] * each
        if left >= each and not job.one_replica_per_node:
            heappush(heap, (order(before.get(node, 0) + here[node], left), node))
    return tuple((node, free.first(node, here[node], each)) for node in sorted(here))
