"""Makes room for a gang if enough slots are free but scattered: running jobs move out of its way.

They move only if all of them find other places, on no more nodes than before. As few jobs as possible move:
the nodes that need the fewest moves come first. If one move is enough, one is made. If several are needed,
the number is not always the smallest: finding that is bin packing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice

from minicluster_hub.jobs.slot_numbers import total
from minicluster_hub.scheduling.allocation.free_slots import FreeSlots, Places, count_slots, replicas_in
from minicluster_hub.scheduling.base import JobView

Place = Callable[[JobView, int, FreeSlots], Places | None]
Movable = tuple[JobView, Places]
"""A job, and its places by the plan."""

_BEGINNINGS = 8
"""How many nodes are tried as the first one to empty."""


@dataclass(frozen=True, slots=True)
class Moves:
    """The gang's places. moved: new places of the jobs that move for it."""

    job_id: int
    places: Places
    moved: Mapping[int, Places]


def make_room(
    gang: JobView, replicas: int, movable: Iterable[Movable], free: FreeSlots, place: Place
) -> Moves | None:
    """Return the moves that make room for the gang; None if moving jobs does not help."""
    if free.count < replicas * gang.slots_per_replica:
        return None
    openings = sorted(_openings(gang, movable, free), key=_cost)
    for begin in range(min(_BEGINNINGS, len(openings))):
        found = _try(gang, replicas, openings[begin:], free, place)
        if found is not None:
            return found
    return None


def _openings(gang: JobView, movable: Iterable[Movable], free: FreeSlots) -> Iterator[tuple[Movable, ...]]:
    """Yield for each node the jobs whose moves make room for one more replica on it."""
    on: dict[str, list[tuple[float, Movable]]] = {}
    for one in movable:
        for node, slots in one[1]:
            on.setdefault(node, []).append((total(slots), one))
    for node in sorted(on):
        room = free.usable(node, gang.slots_per_replica)
        if gang.one_replica_per_node and room >= gang.slots_per_replica:
            continue
        chosen = _fewest(on[node], gang.slots_per_replica - room % gang.slots_per_replica)
        if chosen:
            yield chosen


def _fewest(here: list[tuple[float, Movable]], missing: float) -> tuple[Movable, ...]:
    """Return the smallest job with enough slots, else the largest ones; () if all are not enough."""
    ascending = sorted(here, key=lambda one: (one[0], count_slots(one[1][1]), one[1][0].job_id))
    for slots, one in ascending:
        if slots >= missing:
            return (one,)
    chosen: list[Movable] = []
    for slots, one in reversed(ascending):
        if missing > 0:
            chosen.append(one)
            missing -= slots
    return tuple(chosen) if missing <= 0 else ()


def _cost(opening: tuple[Movable, ...]) -> tuple[int, float, int]:
    """Return how many jobs would restart, and how many slots they have."""
    restarted = sum(places == job.places for job, places in opening)
    return restarted, sum(count_slots(places) for _, places in opening), opening[0][0].job_id


def _try(
    gang: JobView, replicas: int, openings: list[tuple[Movable, ...]], free: FreeSlots, place: Place
) -> Moves | None:
    """Empty nodes until the gang fits; return the moves if all jobs find places."""
    trial, moving = free.copy(), dict[int, Movable]()
    for opening in islice(openings, replicas):
        for job, places in opening:
            if job.job_id not in moving:
                moving[job.job_id] = job, places
                trial.add(places)
        if (
            trial.replicas_that_fit(gang.slots_per_replica, one_replica_per_node=gang.one_replica_per_node)
            >= replicas
        ):
            return _place_all(gang, replicas, list(moving.values()), trial, place)
    return None


def _place_all(
    gang: JobView, replicas: int, moving: list[Movable], trial: FreeSlots, place: Place
) -> Moves | None:
    """Place the gang, then the jobs that move, the largest first."""
    found, moved = place(gang, replicas, trial), dict[int, Places]()
    if found is None:
        return None
    trial.remove(found)
    for job, places in sorted(moving, key=lambda one: (-count_slots(one[1]), one[0].job_id)):
        elsewhere = place(replace(job, places=()), replicas_in(places, job.slots_per_replica), trial)
        if elsewhere is None or len(elsewhere) > len(places):
            return None
        trial.remove(elsewhere)
        moved[job.job_id] = elsewhere
    return Moves(gang.job_id, found, moved)
