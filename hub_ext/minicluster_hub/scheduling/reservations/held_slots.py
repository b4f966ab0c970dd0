"""Which slots a claim takes: chosen anew for each decision from who holds what, the easiest to have first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from math import inf

from minicluster_hub.scheduling.allocation.free_slots import FreeSlots, Places, common, count_slots
from minicluster_hub.scheduling.base import JobView, Snapshot
from minicluster_hub.scheduling.reservations.claims import Claim, GroupsOf, belongs, runs_past

Slot = tuple[str, int]


class Ease(IntEnum):
    """How a slot comes to the claim: it is there, its job can be moved, or nobody knows."""

    THERE = 0
    MOVABLE = 1
    UNKNOWN = 2


Rank = tuple[Ease, int, float]
"""The ease, and among jobs that can be moved their priority and age: the lowest and latest goes first."""

_THERE: Rank = (Ease.THERE, 0, 0.0)
_UNKNOWN: Rank = (Ease.UNKNOWN, 0, 0.0)


@dataclass(frozen=True, slots=True)
class Hold:
    """The slots of a claim beside those that its holders have: `missing` is how many these are at most.

    evicted: jobs that have some of them and may be moved.
    """

    claim: Claim
    slots: frozenset[Slot]
    missing: int
    evicted: tuple[JobView, ...] = ()

    @property
    def places(self) -> Places:
        return as_places(self.slots)

    def is_for(self, owner: str, groups_of: GroupsOf) -> bool:
        """Whether an owner is a holder."""
        return bool(self.claim.holder) and belongs(owner, self.claim.holder, groups_of)


def as_places(slots: Iterable[Slot]) -> Places:
    by_node: dict[str, list[int]] = {}
    for node, slot in sorted(slots):
        by_node.setdefault(node, []).append(slot)
    return tuple((node, tuple(theirs)) for node, theirs in by_node.items())


def as_slots(places: Places) -> Iterator[Slot]:
    return ((node, slot) for node, slots in places for slot in slots)


def holds(snapshot: Snapshot, claims: Iterable[Claim], groups_of: GroupsOf) -> tuple[Hold, ...]:
    """Return what each claim takes as it begins, or now: those of nobody choose first, then who begins first.

    No slot twice at that moment; what others take later, while it lasts, is taken if there is nothing else.
    """
    found: list[Hold] = []
    for claim in sorted(claims, key=lambda one: (bool(one.holder), one.begins_at, one.reservation_id)):
        begins = max(claim.begins_at, snapshot.now)
        others = [hold for hold in found if _meet(hold.claim, claim)]
        taken = slots_of(hold for hold in others if hold.claim.due(begins))
        found.append(_hold(claim, snapshot, taken, slots_of(others), groups_of))
    return tuple(found)


def _meet(one: Claim, other: Claim) -> bool:
    """Whether there is a moment at which both are in force."""
    return _ends_at(other) > one.begins_at and other.begins_at < _ends_at(one)


def _ends_at(claim: Claim) -> float:
    return inf if claim.ends_at is None else claim.ends_at


def slots_of(held: Iterable[Hold]) -> frozenset[Slot]:
    return frozenset().union(*(hold.slots for hold in held))


def _hold(
    claim: Claim,
    snapshot: Snapshot,
    taken: frozenset[Slot],
    taken_later: frozenset[Slot],
    groups_of: GroupsOf,
) -> Hold:
    nodes = {node: snapshot.topology.slots.get(node, 0) for node in claim.nodes or snapshot.topology.slots}
    all_slots = {(node, slot) for node, count in nodes.items() for slot in range(count)}
    theirs = _holders_own(claim, snapshot, groups_of) & all_slots
    wanted = len(all_slots) if claim.slots is None else claim.slots
    missing = max(0, wanted - len(theirs))
    ranks = _ranks(claim, snapshot)
    open_slots = all_slots - theirs - taken
    there = Counter(node for node, slot in open_slots if ranks.get((node, slot)) == _THERE)

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
    return Hold(claim, slots, missing, tuple(evicted) if claim.due(snapshot.now) else ())


def _holders_own(claim: Claim, snapshot: Snapshot, groups_of: GroupsOf) -> set[Slot]:
    """Return what the holders of a claim have: it counts as part of it."""
    if not claim.holder:
        return set()
    owned = [(job.owner, job.places) for job in snapshot.running]
    owned += [(server.owner, ((server.node, server.slots),)) for server in snapshot.servers]
    return {
        slot
        for owner, places in owned
        if belongs(owner, claim.holder, groups_of)
        for slot in as_slots(places)
    }


def _ranks(claim: Claim, snapshot: Snapshot) -> Mapping[Slot, Rank]:
    """Return how each slot comes to the claim when it begins; those that are not in it: nobody knows."""
    now, due = snapshot.now, claim.due(snapshot.now)
    begins = max(claim.begins_at, now)
    ranks = dict.fromkeys(as_slots(snapshot.obtainable().all()), _THERE)
    warm = (slot for gang in snapshot.warm for slot in as_slots(gang.places))
    ranks |= dict.fromkeys(warm, (Ease.THERE, 1, 0.0))
    for job in snapshot.running:
        if not due and not runs_past(job, begins, now):
            rank = _THERE
        else:
            rank = _UNKNOWN if job.fixed(begins) else (Ease.MOVABLE, job.priority, -job.submitted_at)
        ranks |= dict.fromkeys(as_slots(job.places), rank)
    for server in snapshot.servers:
        if server.until is not None and now < server.until <= begins:
            ranks |= dict.fromkeys(((server.node, slot) for slot in server.slots), _THERE)
    return ranks


def without(job: JobView, slots: frozenset[Slot]) -> Places:
    """Return what a job keeps if it loses these slots: whole tasks; () if that is too little for it."""
    left = tuple(place for place in job.places if not slots.intersection(as_slots((place,))))
    return left if count_slots(left) >= job.min_chunks * job.chunk_slots else ()


@dataclass(frozen=True, slots=True)
class Against:
    """Which claims keep which jobs off their slots. The same claims for thousands of jobs: asked once.

    by_owner: those that are for others than the owner, though they may not keep every job off.
    """

    snapshot: Snapshot
    held: tuple[Hold, ...] = ()
    by_job: Mapping[int, tuple[Hold, ...]] = field(default_factory=dict)
    by_owner: Mapping[str, tuple[Hold, ...]] = field(default_factory=dict)

    @classmethod
    def of(cls, snapshot: Snapshot, held: tuple[Hold, ...], groups_of: GroupsOf) -> Against:
        now = snapshot.now
        by_owner = {
            owner: tuple(hold for hold in held if not hold.is_for(owner, groups_of))
            for owner in {job.owner for job in snapshot.jobs}
        }
        by_job = {
            job.job_id: tuple(
                hold for hold in by_owner[job.owner] if hold.claim.keeps_off(job, now, groups_of)
            )
            for job in snapshot.jobs
        }
        against = {job_id: those for job_id, those in by_job.items() if those}
        return cls(snapshot, held, against, by_owner)

    def barred(self) -> dict[int, Places]:
        """Return what each job may not have."""
        known: dict[tuple[Hold, ...], Places] = {}
        for against in self.by_job.values():
            if against not in known:
                known[against] = as_places(slots_of(against))
        return {job_id: known[against] for job_id, against in self.by_job.items()}

    def hopeless(self) -> dict[int, str]:
        """Return why jobs wait for which there is no room outside the claims, though all else were free."""
        all_slots = FreeSlots({node: range(count) for node, count in self.snapshot.topology.slots.items()})
        known: dict[tuple[Hold, ...], FreeSlots] = {}
        found: dict[int, str] = {}
        for job in self.snapshot.waiting:
            against = self.by_job.get(job.job_id, ())
            if against and against not in known:
                known[against] = _beside(all_slots, against)
            if against and room_for(job, known[against]) < job.min_chunks <= room_for(job, all_slots):
                found[job.job_id] = self.told(job)
        return found

    def told(self, job: JobView) -> str:
        against = self.by_job.get(job.job_id, ())
        return "; ".join(dict.fromkeys(hold.claim.told(self.snapshot.now) for hold in against))

    def kept_from(self, owner: str, ends_at: float, groups_of: GroupsOf) -> tuple[frozenset[Slot], str]:
        """Return the slots that a notebook server, which may hold some until then, does not get, and why."""
        now = self.snapshot.now
        found = [
            hold
            for hold in self.held
            if hold.claim.begins_at < max(ends_at, now) and not hold.is_for(owner, groups_of)
        ]
        told = "; ".join(hold.claim.told(now).partition("; with a --timeout")[0] for hold in found)
        return slots_of(found), told

    def coming(self, job: JobView) -> tuple[Hold, ...]:
        """Return what keeps a job off its slots though it has not begun."""
        now = self.snapshot.now
        return tuple(hold for hold in self.by_job.get(job.job_id, ()) if not hold.claim.due(now))

    def runs_into(self, job: JobView) -> float:
        """Return from when on a waiting job starts too late for a claim that does not keep it off now."""
        now = self.snapshot.now
        if job.time_limit_s is None:
            return inf
        latest = (hold.claim.begins_at - job.time_limit_s for hold in self.by_owner.get(job.owner, ()))
        return min((at for at in latest if at >= now), default=inf)

    def opened(self, job: JobView) -> Iterator[Places]:
        """Yield what of the claimed slots nobody has."""
        busy = {slot for other in self.snapshot.running for slot in as_slots(other.places)}
        busy |= {(server.node, slot) for server in self.snapshot.servers for slot in server.slots}
        return (as_places(hold.slots - busy) for hold in self.by_job.get(job.job_id, ()))


def _beside(all_slots: FreeSlots, against: Iterable[Hold]) -> FreeSlots:
    room = all_slots.copy()
    for hold in against:
        room.take(common(hold.places, room))
    return room


def room_for(job: JobView, free: FreeSlots) -> int:
    """Return how many chunks of a job there is room for."""
    return free.most_chunks(job.chunk_slots, scatter=job.scatter)
