"""Chooses each reservation's slots anew for each decision: free ones first, then those of movable jobs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from math import inf

from minicluster_hub.jobs.slot_numbers import slot_of
from minicluster_hub.scheduling.allocation.free_slots import FreeSlots, Places, common, count_slots
from minicluster_hub.scheduling.base import JobView, Snapshot
from minicluster_hub.scheduling.reservations.reservation import GroupsOf, ReservationView, belongs, runs_past

Slot = tuple[str, int]


class Ease(IntEnum):
    """How easily a reservation gets a slot: it is free, its job can be moved, or its end is unknown."""

    FREE = 0
    MOVABLE = 1
    UNKNOWN = 2


Rank = tuple[Ease, int, float]
"""Ease; for movable jobs also priority and age: low priority moves first; if equal, the newest job."""

_FREE: Rank = (Ease.FREE, 0, 0.0)
_UNKNOWN: Rank = (Ease.UNKNOWN, 0, 0.0)


@dataclass(frozen=True, slots=True)
class ReservedSlots:
    """The slots that a reservation takes, without those that its holders already have.

    missing: how many slots it still needs; `slots` may be fewer.
    evicted: running jobs on these slots that can be moved.
    """

    reservation: ReservationView
    slots: frozenset[Slot]
    missing: int
    evicted: tuple[JobView, ...] = ()

    @property
    def places(self) -> Places:
        return as_places(self.slots)

    def is_for(self, owner: str, groups_of: GroupsOf) -> bool:
        """Whether this owner is a holder of the reservation."""
        return bool(self.reservation.holder) and belongs(owner, self.reservation.holder, groups_of)


_Reserved = tuple[ReservedSlots, ...]


def as_places(slots: Iterable[Slot]) -> Places:
    by_node: dict[str, list[int]] = {}
    for node, slot in sorted(slots):
        by_node.setdefault(node, []).append(slot)
    return tuple((node, tuple(theirs)) for node, theirs in by_node.items())


def as_slots(places: Places) -> Iterator[Slot]:
    """Yield the slots; half a slot is reserved with its other half, so it counts as the whole."""
    return ((node, slot_of(slot)) for node, slots in places for slot in slots)


def reserved_slots(
    snapshot: Snapshot, reservations: Iterable[ReservationView], groups_of: GroupsOf
) -> _Reserved:
    """Return the slots that each reservation takes when it begins, or now if it has begun.

    Maintenance and drained nodes choose first, then reservations by their start. Reservations that overlap
    share no slot at the start of the later one. Slots that another reservation takes later are chosen last.
    """
    found: list[ReservedSlots] = []
    for reservation in sorted(
        reservations, key=lambda one: (bool(one.holder), one.begins_at, one.reservation_id)
    ):
        begins = max(reservation.begins_at, snapshot.now)
        others = [one for one in found if _overlap(one.reservation, reservation)]
        taken = slots_of(one for one in others if one.reservation.begun(begins))
        found.append(_reserve(reservation, snapshot, taken, slots_of(others), groups_of))
    return tuple(found)


def _overlap(one: ReservationView, other: ReservationView) -> bool:
    """Whether two reservations overlap in time."""
    return _ends_at(other) > one.begins_at and other.begins_at < _ends_at(one)


def _ends_at(reservation: ReservationView) -> float:
    return inf if reservation.ends_at is None else reservation.ends_at


def slots_of(all_reserved: Iterable[ReservedSlots]) -> frozenset[Slot]:
    return frozenset[Slot]().union(*(one.slots for one in all_reserved))


def _reserve(
    reservation: ReservationView,
    snapshot: Snapshot,
    taken: frozenset[Slot],
    taken_later: frozenset[Slot],
    groups_of: GroupsOf,
) -> ReservedSlots:
    nodes = {
        node: snapshot.topology.slots.get(node, 0) for node in reservation.nodes or snapshot.topology.slots
    }
    all_slots = {(node, slot) for node, count in nodes.items() for slot in range(count)}
    theirs = _holders_own(reservation, snapshot, groups_of) & all_slots
    wanted = len(all_slots) if reservation.slots is None else reservation.slots
    missing = max(0, wanted - len(theirs))
    ranks = _ranks(reservation, snapshot)
    open_slots = all_slots - theirs - taken
    there = Counter(node for node, slot in open_slots if ranks.get((node, slot)) == _FREE)

    def order(slot: Slot) -> tuple[Ease, bool, Rank, int, Slot]:
        rank = ranks.get(slot, _UNKNOWN)
        return rank[0], slot in taken_later, rank, -there[slot[0]], slot

    slots = frozenset(sorted(open_slots, key=order)[:missing])
    movable = {slot for slot in slots if ranks.get(slot, _UNKNOWN)[0] is Ease.MOVABLE}
    evicted = (
        job
        for job in snapshot.running
        if movable.intersection(as_slots(job.places)) and (without(job, slots) or not job.only_shrinks)
    )
    return ReservedSlots(
        reservation, slots, missing, tuple(evicted) if reservation.begun(snapshot.now) else ()
    )


def _holders_own(reservation: ReservationView, snapshot: Snapshot, groups_of: GroupsOf) -> set[Slot]:
    """Return the slots that the holders already have; they count as part of the reservation."""
    if not reservation.holder:
        return set()
    owned = [(job.owner, job.places) for job in snapshot.running]
    owned += [(server.owner, ((server.node, server.slots),)) for server in snapshot.servers]
    return {
        slot
        for owner, places in owned
        if belongs(owner, reservation.holder, groups_of)
        for slot in as_slots(places)
    }


def _ranks(reservation: ReservationView, snapshot: Snapshot) -> Mapping[Slot, Rank]:
    """Rank slots by how easily the reservation gets them when it begins. A slot without a rank is UNKNOWN."""
    now, begun = snapshot.now, reservation.begun(snapshot.now)
    begins = max(reservation.begins_at, now)
    ranks = dict.fromkeys(as_slots(snapshot.obtainable().all()), _FREE)
    warm = (slot for gang in snapshot.warm for slot in as_slots(gang.places))
    ranks |= dict.fromkeys(warm, (Ease.FREE, 1, 0.0))
    for job in snapshot.running:
        if not begun and not runs_past(job, begins, now):
            rank = _FREE
        else:
            rank = (
                _UNKNOWN
                if not job.is_preemptible(begins)
                else (Ease.MOVABLE, job.priority, -job.submitted_at)
            )
        # A job with half of the slot is as much in the way as one with the whole.
        ranks |= {slot: max(rank, ranks.get(slot, _FREE)) for slot in as_slots(job.places)}
    for server in snapshot.servers:
        if server.until is not None and now < server.until <= begins:
            ranks |= dict.fromkeys(as_slots(((server.node, server.slots),)), _FREE)
    return ranks


def without(job: JobView, slots: frozenset[Slot]) -> Places:
    """Return the tasks that a job keeps without these slots; () if they are fewer than its minimum."""
    left = tuple(place for place in job.places if not slots.intersection(as_slots((place,))))
    return left if count_slots(left) >= job.min_replicas * job.slots_per_replica else ()


@dataclass(frozen=True, slots=True)
class Exclusions:
    """Which reservations exclude which jobs from their slots: computed once for thousands of jobs.

    by_job: the reserved slots that a job may not use if it starts now; jobs without any are missing.
    by_owner: the slots reserved for others; a job that ends before the reservation may still use them.
    """

    snapshot: Snapshot
    all_reserved: _Reserved = ()
    by_job: Mapping[int, tuple[ReservedSlots, ...]] = field(
        default_factory=dict[int, tuple[ReservedSlots, ...]]
    )
    by_owner: Mapping[str, tuple[ReservedSlots, ...]] = field(
        default_factory=dict[str, tuple[ReservedSlots, ...]]
    )

    @classmethod
    def of(cls, snapshot: Snapshot, all_reserved: _Reserved, groups_of: GroupsOf) -> Exclusions:
        now = snapshot.now
        by_owner = {
            owner: tuple(one for one in all_reserved if not one.is_for(owner, groups_of))
            for owner in {job.owner for job in snapshot.jobs}
        }
        by_job = {
            job.job_id: tuple(
                one for one in by_owner[job.owner] if one.reservation.excludes(job, now, groups_of)
            )
            for job in snapshot.jobs
        }
        return cls(
            snapshot, all_reserved, {job_id: some for job_id, some in by_job.items() if some}, by_owner
        )

    def excluded(self) -> dict[int, Places]:
        """Return the slots that each job may not use."""
        known: dict[_Reserved, Places] = {}
        for excluding in self.by_job.values():
            if excluding not in known:
                known[excluding] = as_places(slots_of(excluding))
        return {job_id: known[excluding] for job_id, excluding in self.by_job.items()}

    def never_fit(self) -> dict[int, str]:
        """Return, by job id, why a job cannot fit beside the reservations even in an empty cluster."""
        all_slots = self.snapshot.topology.all_free()
        known: dict[_Reserved, FreeSlots] = {}
        found: dict[int, str] = {}
        for job in self.snapshot.waiting:
            excluding = self.by_job.get(job.job_id, ())
            if excluding and excluding not in known:
                known[excluding] = _beside(all_slots, excluding)
            if excluding and room_for(job, known[excluding]) < job.min_replicas <= room_for(job, all_slots):
                found[job.job_id] = self.describe(job)
        return found

    def describe(self, job: JobView) -> str:
        """Describe the reservations that exclude a job."""
        excluding = self.by_job.get(job.job_id, ())
        return "; ".join(dict.fromkeys(one.reservation.describe(self.snapshot.now) for one in excluding))

    def excluded_from(self, owner: str, ends_at: float, groups_of: GroupsOf) -> tuple[frozenset[Slot], str]:
        """Return the slots that a notebook server may not hold until `ends_at`, and the reason."""
        now = self.snapshot.now
        found = [
            one
            for one in self.all_reserved
            if one.reservation.begins_at < max(ends_at, now) and not one.is_for(owner, groups_of)
        ]
        why = "; ".join(one.reservation.describe(now).partition("; with a --timeout")[0] for one in found)
        return slots_of(found), why

    def coming(self, job: JobView) -> _Reserved:
        """Return the slots of reservations that exclude a job and have not begun."""
        now = self.snapshot.now
        return tuple(one for one in self.by_job.get(job.job_id, ()) if not one.reservation.begun(now))

    def runs_into(self, job: JobView) -> float:
        """Return the latest start at which a waiting job still ends before a reservation; inf: no limit."""
        now = self.snapshot.now
        if job.time_limit_s is None:
            return inf
        latest = (one.reservation.begins_at - job.time_limit_s for one in self.by_owner.get(job.owner, ()))
        return min((at for at in latest if at >= now), default=inf)

    def unused(self, job: JobView) -> Iterator[Places]:
        """Yield the unused slots of each reservation that excludes a job."""
        busy = {slot for other in self.snapshot.running for slot in as_slots(other.places)}
        busy |= {
            slot for server in self.snapshot.servers for slot in as_slots(((server.node, server.slots),))
        }
        return (as_places(one.slots - busy) for one in self.by_job.get(job.job_id, ()))


def _beside(all_slots: FreeSlots, excluding: Iterable[ReservedSlots]) -> FreeSlots:
    room = all_slots.copy()
    for one in excluding:
        room.remove(common(one.places, room))
    return room


def room_for(job: JobView, free: FreeSlots) -> int:
    """Return how many replicas of a job there is room for."""
    return free.replicas_that_fit(job.slots_per_replica, one_replica_per_node=job.one_replica_per_node)
