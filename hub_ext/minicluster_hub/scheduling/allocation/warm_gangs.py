"""Which warm gang a job takes over, and which other slots it gets."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain

from minicluster_hub.scheduling.allocation.allocation import Allocation
from minicluster_hub.scheduling.allocation.free_slots import FreeSlots, Places, largest_parts
from minicluster_hub.scheduling.base import JobView, WarmGang

Place = Callable[[int, FreeSlots], Places | None]
"""Places that many replicas of the job on free slots."""
Taken = tuple[WarmGang, Places]
"""The gang, and the job's places: the gang's slots, more, or a part of them."""


def remainder_of(job: JobView, allocation: Allocation) -> WarmGang | None:
    """Return the rest of the gang of a job that lost a node."""
    return next((gang for gang in allocation.warm if gang.gang_id == job.resumes_gang_id), None)


def take_over(job: JobView, replicas: int, allocation: Allocation, place: Place) -> Taken | None:
    """Use a warm gang of the owner: one of that size, else the largest smaller one with more nodes, else a
    part of a larger one if too few slots are free.

    A job that lost a node continues at once on its remaining nodes if they are enough, else with nodes that
    replace the lost ones: the remaining nodes have its newest snapshots.
    """
    warm = allocation.warm
    remainder = remainder_of(job, allocation)
    if remainder is not None and (remainder.replicas <= job.max_replicas or job.one_replica_per_node):
        found = _continued(job, remainder, replicas, allocation, place)
        if found is not None:
            return remainder, found
    suiting = [gang for gang in warm if gang.suits(job)]
    return _extended(replicas, suiting, allocation, place) or _part(job, replicas, suiting, allocation, place)


def _continued(
    job: JobView, remainder: WarmGang, replicas: int, allocation: Allocation, place: Place
) -> Places | None:
    if remainder.replicas >= job.min_replicas:
        return largest_parts(
            remainder.places, min(remainder.replicas, job.max_replicas) * job.slots_per_replica
        )
    nodes = [node for node, _ in remainder.places]
    missing = dict.fromkeys((replicas - remainder.replicas, job.min_replicas - remainder.replicas))

    def beside(count: int) -> Callable[[FreeSlots], Places | None]:
        return lambda free: place(count, free.without(nodes))

    at_once = (beside(count)(allocation.free) for count in missing)
    soon = (allocation.preempt(job, count, beside(count)) for count in missing)
    more = next(filter(None, chain(at_once, soon)), None)
    return None if more is None else (*remainder.places, *more)


def _extended(replicas: int, suiting: list[WarmGang], allocation: Allocation, place: Place) -> Taken | None:
    smaller = [gang for gang in suiting if gang.replicas <= replicas]
    for gang in sorted(smaller, key=lambda gang: (gang.replicas, gang.idle_since), reverse=True):
        others = allocation.free.without(node for node, _ in gang.places)
        missing = replicas - gang.replicas
        more = place(missing, others) if missing else ()
        if more is not None:
            return gang, (*gang.places, *more)
    return None


def _part(
    job: JobView, replicas: int, suiting: list[WarmGang], allocation: Allocation, place: Place
) -> Taken | None:
    """Use part of a larger gang: whole tasks, so only for jobs with one task for each replica."""
    larger = [gang for gang in suiting if job.one_replica_per_node and gang.replicas > replicas]
    if not larger or place(replicas, allocation.free):
        return None
    gang = min(larger, key=lambda gang: (gang.replicas, -gang.idle_since))
    return gang, largest_parts(gang.places, replicas * job.slots_per_replica)
