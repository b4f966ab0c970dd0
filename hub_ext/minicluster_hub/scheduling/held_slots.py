"""Which slots a claim takes: chosen anew for each decision from who holds what, the easiest to have first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum

from minicluster_hub.scheduling.base import JobView, Snapshot
from minicluster_hub.scheduling.claims import Claim, GroupsOf, belongs, runs_past
from minicluster_hub.scheduling.free import Places, count_slots

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


def as_places(slots: Iterable[Slot]) -> Places:
    by_node: dict[str, list[int]] = {}
    for node, slot in sorted(slots):
        by_node.setdefault(node, []).append(slot)
    return tuple((node, tuple(theirs)) for node, theirs in by_node.items())


def as_slots(places: Places) -> Iterator[Slot]:
    return ((node, slot) for node, slots in places for slot in slots)


def holds(snapshot: Snapshot, claims: Iterable[Claim], groups_of: GroupsOf) -> tuple[Hold, ...]:
    """Return what each claim takes, no slot twice: those of nobody first, then the others as they begin."""
    taken: set[Slot] = set()
    found: list[Hold] = []
    for claim in sorted(claims, key=lambda one: (bool(one.holder), one.begins_at, one.claim_id)):
        found.append(hold := _hold(claim, snapshot, taken, groups_of))
        taken |= hold.slots
    return tuple(found)


def _hold(claim: Claim, snapshot: Snapshot, taken: set[Slot], groups_of: GroupsOf) -> Hold:
    nodes = {node: snapshot.topology.slots.get(node, 0) for node in claim.nodes or snapshot.topology.slots}
    all_slots = {(node, slot) for node, count in nodes.items() for slot in range(count)}
    theirs = _holders_own(claim, snapshot, groups_of) & all_slots
    wanted = len(all_slots) if claim.slots is None else claim.slots
    missing = max(0, wanted - len(theirs))
    ranks = _ranks(claim, snapshot)
    open_slots = all_slots - theirs - taken
    there = Counter(node for node, slot in open_slots if ranks.get((node, slot)) == _THERE)

    def order(slot: Slot) -> tuple[Rank, int, Slot]:
        return ranks.get(slot, _UNKNOWN), -there[slot[0]], slot

    slots = frozenset(sorted(open_slots, key=order)[:missing])
    movable = {slot for slot in slots if ranks.get(slot, _UNKNOWN)[0] is Ease.MOVABLE}
    evicted = (job for job in snapshot.running if movable.intersection(as_slots(job.places)))
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
