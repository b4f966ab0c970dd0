"""From a snapshot to decisions: the differences between the present places and the assigned ones."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from minicluster_hub.jobs.slot_numbers import overlap
from minicluster_hub.scheduling.allocation.assign import Assignment, assign
from minicluster_hub.scheduling.allocation.free_slots import FreeSlots, Places, count_slots, largest_parts
from minicluster_hub.scheduling.base import JobView, Placement, Policy, Snapshot


@dataclass(frozen=True, slots=True)
class Admit:
    """Lease these slots for a new gang."""

    job_id: int
    places: Places


@dataclass(frozen=True, slots=True)
class Reuse:
    """Bind a warm gang of the same owner."""

    job_id: int
    gang_id: int


@dataclass(frozen=True, slots=True)
class Extend:
    """Bind a warm gang of the same owner that is too small, and lease these slots for more tasks."""

    job_id: int
    gang_id: int
    places: Places


@dataclass(frozen=True, slots=True)
class Trim:
    """End the tasks of a warm gang on these nodes; its owner's next job uses the others."""

    gang_id: int
    nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Grow:
    """Lease these slots for tasks that join a running job."""

    job_id: int
    places: Places


@dataclass(frozen=True, slots=True)
class Resize:
    """Move a running job to these places; (): it waits again. why: a sentence for its owner."""

    job_id: int
    places: Places
    why: str


@dataclass(frozen=True, slots=True)
class Reclaim:
    """End a warm gang, because other jobs need its slots."""

    gang_id: int


Decision = Admit | Reuse | Extend | Trim | Grow | Resize | Reclaim


@dataclass(frozen=True, slots=True)
class Schedule:
    """again_at: when to schedule again even if nothing happens."""

    decisions: tuple[Decision, ...]
    assignment: Assignment

    @property
    def again_at(self) -> float | None:
        return self.assignment.again_at


def schedule(snapshot: Snapshot, policy: Policy, placement: Placement) -> Schedule:
    """Return what to do now. If a job's slots are still held by others, it starts later."""
    assignment = assign(snapshot, policy, placement)
    return Schedule(tuple(_difference(snapshot, assignment)), assignment)


def _difference(snapshot: Snapshot, assignment: Assignment) -> Iterator[Decision]:
    cold = snapshot.free.copy()
    for gang in snapshot.warm:
        cold.remove(gang.places)
    for job in snapshot.running:
        yield from _changed(job, assignment.places.get(job.job_id, ()), cold, snapshot, assignment)
    for job in snapshot.waiting:
        places = assignment.places.get(job.job_id)
        if places is not None and job.starts_at_once:
            yield from _started(job, places, cold, snapshot, assignment)


def _changed(
    job: JobView, places: Places, cold: FreeSlots, snapshot: Snapshot, assignment: Assignment
) -> Iterator[Decision]:
    places = _bearable(job, places)
    if set(places) == set(job.places):
        return
    added = tuple(place for place in places if place not in job.places)
    if job.job_id in snapshot.growing and set(job.places) <= set(places):
        if cold.has(added):
            yield Grow(job.job_id, added)
    elif in_the_way := _warm_in_the_way(added, snapshot, assignment):
        yield from in_the_way
    else:
        yield Resize(job.job_id, places, _why(job, places, assignment))


def _bearable(job: JobView, places: Places) -> Places:
    """Return the new places of a running job; one that may only shrink keeps its minimum at least."""
    grows, shrinks = set(job.places) <= set(places), places and set(places) <= set(job.places)
    if grows or shrinks or not job.only_shrinks:
        return places
    return largest_parts(job.places, min(job.replicas, job.min_replicas) * job.slots_per_replica)


def _why(job: JobView, places: Places, assignment: Assignment) -> str:
    """Say for which job a job loses slots, or how its own slots change."""
    kept = dict(places)
    lost = tuple((node, tuple(set(slots) - set(kept.get(node, ())))) for node, slots in job.places)
    others = [
        job_id
        for job_id, theirs in assignment.places.items()
        if job_id != job.job_id and _overlap(theirs, lost)
    ]
    if others:
        return f"makes room for job{'' if len(others) == 1 else 's'} {', '.join(map(str, others))}"
    before, after = count_slots(job.places), count_slots(places)
    return (
        f"continues with {after:g} slots instead of {before:g}"
        if before != after
        else "moves closer together"
    )


def _started(
    job: JobView, places: Places, cold: FreeSlots, snapshot: Snapshot, assignment: Assignment
) -> Iterator[Decision]:
    gang = assignment.warm.get(job.job_id)
    if gang is not None:
        more = tuple(place for place in places if place not in gang.places)
        parting = tuple(node for node, slots in gang.places if (node, slots) not in places)
        if parting:
            yield Trim(gang.gang_id, parting)
        elif cold.has(more):
            yield Extend(job.job_id, gang.gang_id, more) if more else Reuse(job.job_id, gang.gang_id)
        else:
            yield from _warm_in_the_way(more, snapshot, assignment)
    elif cold.has(places):
        yield Admit(job.job_id, places)
    else:
        yield from _warm_in_the_way(places, snapshot, assignment)


def _warm_in_the_way(places: Places, snapshot: Snapshot, assignment: Assignment) -> list[Reclaim]:
    used = {gang.gang_id for gang in assignment.warm.values()}
    return [
        Reclaim(gang.gang_id)
        for gang in snapshot.warm
        if gang.gang_id not in used and _overlap(gang.places, places)
    ]


def _overlap(one: Places, other: Places) -> bool:
    theirs = dict(other)
    return any(overlap(slots, theirs.get(node, ())) for node, slots in one)
