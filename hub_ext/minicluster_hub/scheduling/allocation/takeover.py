"""Which warm gang a job takes over, and what it gets besides."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

from minicluster_hub.scheduling.allocation.free_slots import FreeSlots, Places, largest_parts
from minicluster_hub.scheduling.allocation.reserve import Reserve
from minicluster_hub.scheduling.base import JobView, WarmGang

Place = Callable[[int, FreeSlots], Places | None]
"""So many chunks of the job on free slots."""
Taken = tuple[WarmGang, Places]
"""The gang, and all that the job has then: more than the gang's places, or a part of them."""


@dataclass(frozen=True, slots=True)
class Offer:
    """The warm gangs, the longest idle first, what is free, and what is to be had soon."""

    warm: Sequence[WarmGang]
    free: FreeSlots
    reserve: Reserve


def left_of(job: JobView, warm: Sequence[WarmGang]) -> WarmGang | None:
    """Return what is left of the gang of a job that lost a node."""
    return next((gang for gang in warm if gang.gang_id == job.goes_on), None)


def take_over(job: JobView, chunks: int, offer: Offer, place: Place) -> Taken | None:
    """Use the owner's warm gang of that size, or the largest smaller one with more nodes added; or a part
    of a larger one, if there is nothing free.

    A job that lost a node goes on with the others at once where they are enough for it, else with those who
    take the lost ones' place: the others have its newest snapshots.
    """
    left = left_of(job, offer.warm)
    if left is not None and (left.chunks <= job.max_chunks or job.scatter):
        found = _gone_on(job, left, chunks, offer, place)
        if found is not None:
            return left, found
    return _extended(job, chunks, offer, place) or _part(job, chunks, offer, place)


def _gone_on(job: JobView, left: WarmGang, chunks: int, offer: Offer, place: Place) -> Places | None:
    if left.chunks >= job.min_chunks:
        return largest_parts(left.places, min(left.chunks, job.max_chunks) * job.chunk_slots)
    nodes = [node for node, _ in left.places]
    missing = dict.fromkeys((chunks - left.chunks, job.min_chunks - left.chunks))

    def beside(count: int) -> Callable[[FreeSlots], Places | None]:
        return lambda free: place(count, free.without(nodes))

    at_once = (beside(count)(offer.free) for count in missing)
    soon = (offer.reserve.find(job, count, beside(count)) for count in missing)
    more = next(filter(None, chain(at_once, soon)), None)
    return None if more is None else (*left.places, *more)


def _extended(job: JobView, chunks: int, offer: Offer, place: Place) -> Taken | None:
    suiting = [gang for gang in offer.warm if gang.suits(job) and gang.chunks <= chunks]
    for gang in sorted(suiting, key=lambda gang: (gang.chunks, gang.idle_since), reverse=True):
        others = offer.free.without(node for node, _ in gang.places)
        missing = chunks - gang.chunks
        more = place(missing, others) if missing else ()
        if more is not None:
            return gang, (*gang.places, *more)
    return None


def _part(job: JobView, chunks: int, offer: Offer, place: Place) -> Taken | None:
    larger = list(_larger(job, chunks, offer.warm))
    if not larger or place(chunks, offer.free):
        return None
    gang = min(larger, key=lambda gang: (gang.chunks, -gang.idle_since))
    return gang, largest_parts(gang.places, chunks * job.chunk_slots)


def _larger(job: JobView, chunks: int, warm: Sequence[WarmGang]) -> Iterator[WarmGang]:
    """Yield those of which a part is enough; a part of a task is none."""
    return (gang for gang in warm if job.scatter and gang.suits(job) and gang.chunks > chunks)
