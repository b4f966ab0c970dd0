"""Claims before the policy: what they leave for everybody, and what the holders of reservations may have.

A reservation that is due is a small cluster of its own: its holders' jobs that it has room for are planned
first, among themselves. Then all jobs are planned on the slots that no claim holds by now, by the same
policy. Slots of a claim that has not begun are there for jobs that end before it; all others are kept off
them, whatever the placement, and are not waited for there: who ends before has the slots, though it comes
after them. Running jobs that may be moved leave what is claimed when it begins; others are waited for.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import takewhile
from math import inf

from minicluster_hub.jobs.records import Wait
from minicluster_hub.scheduling.allocation.assign import Assignment
from minicluster_hub.scheduling.allocation.free_slots import FreeSlots, Places, common
from minicluster_hub.scheduling.base import JobView, Placement, Snapshot, Topology, WarmGang
from minicluster_hub.scheduling.placement.outside import kept_off
from minicluster_hub.scheduling.planning.moments import soonest
from minicluster_hub.scheduling.policies import policy
from minicluster_hub.scheduling.reservations.claims import Claim, GroupsOf, belongs
from minicluster_hub.scheduling.reservations.held_slots import (
    Against,
    Hold,
    Slot,
    as_places,
    as_slots,
    holds,
    room_for,
    slots_of,
    without,
)
from minicluster_hub.scheduling.scheduler import Decision, Reclaim, Resize, schedule


@dataclass(frozen=True, slots=True)
class Kept:
    """snapshot: for everybody. inner: of each reservation that is due and has holders who wait.

    clearing: what has to leave first. barred: what each waiting or running job may not have more of.
    reasons: of the jobs that are not in the snapshot, since no slots but claimed ones have room for them.
    """

    snapshot: Snapshot
    against: Against
    inner: tuple[Snapshot, ...] = ()
    clearing: tuple[Decision, ...] = ()
    barred: Mapping[int, Places] = field(default_factory=dict)
    reasons: Mapping[int, str] = field(default_factory=dict)
    again_at: float | None = None

    def shown(self) -> Snapshot:
        """Return the snapshot as those who wait are to see it: claimed slots belong to the cluster, too."""
        return replace(self.snapshot, topology=self.against.snapshot.topology)

    @property
    def next_begins_at(self) -> float:
        """When the next claim takes its slots; infinity: none is to come."""
        now = self.snapshot.now
        begins = (hold.claim.begins_at for hold in self.against.held if not hold.claim.due(now))
        return min(begins, default=inf)

    def known_until(self, job: JobView) -> float:
        """Return until when one can tell whether a waiting job starts.

        Then a claim begins, and nobody knows what it leaves; or the job would run into one.
        """
        return min(self.next_begins_at, self.against.runs_into(job))

    def explained(self, waits: Iterable[Wait], starts: Mapping[int, float]) -> Iterator[Wait]:
        """Yield why everybody waits: who would start but for a claim is told of it, then those held back.

        starts: what is foretold. Of starts from `known_until` on nothing is said.
        """
        if not self.against.held:
            yield from waits
            return
        jobs = {job.job_id: job for job in self.snapshot.waiting}
        for wait in waits:
            job = jobs[wait.job_id]
            told = self._reason(job)
            at = starts.get(wait.job_id) if told else wait.expected_start_at
            known = at is not None and at < self.known_until(job)
            yield replace(wait, reason=told or wait.reason, expected_start_at=at if known else None)
        for position, (job_id, reason) in enumerate(sorted(self.reasons.items()), len(jobs) + 1):
            yield Wait(job_id, position, reason, None)

    def _reason(self, job: JobView) -> str:
        if job.job_id not in self.against.by_job:
            return ""
        free = self.snapshot.free.copy()
        free.take(common(self.barred[job.job_id], free))
        if room_for(job, free) >= job.min_chunks:
            return ""
        for places in self.against.opened(job):
            free.give(places)
        return self.against.told(job) if room_for(job, free) >= job.min_chunks else ""


def keep(snapshot: Snapshot, claims: Iterable[Claim], groups_of: GroupsOf) -> Kept:
    """Return what claims leave of a snapshot."""
    now = snapshot.now
    held = holds(snapshot, (claim for claim in claims if not claim.over(now)), groups_of)
    against = Against.of(snapshot, held, groups_of)
    if not held:
        return Kept(snapshot, against)
    barred, reasons = against.barred(), against.hopeless()
    ending = _warm_in_the_way(snapshot, held, barred, groups_of)
    stays = _ended(snapshot, ending)
    everybodys = _left(stays, (hold for hold in held if hold.claim.due(now)))
    return Kept(
        replace(everybodys, jobs=tuple(job for job in snapshot.jobs if job.job_id not in reasons)),
        against,
        tuple(_inner(stays, held, reasons, groups_of)),
        (*_evictions(snapshot, held), *(Reclaim(gang.gang_id) for gang in ending)),
        barred,
        reasons,
        soonest(now, _moments(snapshot, held)),
    )


def _warm_in_the_way(
    snapshot: Snapshot, held: tuple[Hold, ...], barred: Mapping[int, Places], groups_of: GroupsOf
) -> list[WarmGang]:
    """Return the warm gangs on slots that are due to others, or that a job of their owner may not have."""
    claimed = {
        slot: hold.claim.holder for hold in held if hold.claim.due(snapshot.now) for slot in hold.slots
    }
    useless: dict[str, set[tuple[str, int]]] = {}
    for job in snapshot.waiting:
        useless.setdefault(job.owner, set()).update(as_slots(barred.get(job.job_id, ())))

    def in_the_way(gang: WarmGang) -> bool:
        return any(
            slot in useless.get(gang.owner, ())
            or (slot in claimed and not belongs(gang.owner, claimed[slot], groups_of))
            for slot in as_slots(gang.places)
        )

    return [gang for gang in snapshot.warm if in_the_way(gang)]


def _ended(snapshot: Snapshot, ending: list[WarmGang]) -> Snapshot:
    """Return the snapshot in which warm gangs are being ended."""
    free, leaving = snapshot.free.copy(), snapshot.leaving.copy()
    for gang in ending:
        free.take(gang.places)
        leaving.give(gang.places)
    warm = tuple(gang for gang in snapshot.warm if gang not in ending)
    return replace(snapshot, free=free, leaving=leaving, warm=warm)


def _left(snapshot: Snapshot, holds: Iterable[Hold], nodes: tuple[str, ...] = ()) -> Snapshot:
    """Return the snapshot without the slots of these claims. nodes: if any, only theirs are free."""
    free, leaving = snapshot.free.copy(), snapshot.leaving.copy()
    slots = dict(snapshot.topology.slots)
    gone = [hold.places for hold in holds]
    for node, claimed in (place for places in gone for place in places):
        slots[node] -= len(claimed)
    if nodes:
        gone += [((node, (*free.on(node), *leaving.on(node))),) for node in free.names if node not in nodes]
    for places in gone:
        free.take(common(places, free))
        leaving.take(common(places, leaving))
    warm = tuple(gang for gang in snapshot.warm if free.has(gang.places))
    for gang in snapshot.warm:
        if gang not in warm:
            free.take(common(gang.places, free))  # Part of it is claimed: it is no start for anybody else.
    topology = Topology(slots, snapshot.topology.link_bytes_s)
    return replace(snapshot, free=free, leaving=leaving, topology=topology, warm=warm)


def _inner(
    snapshot: Snapshot, held: tuple[Hold, ...], hopeless: Mapping[int, str], groups_of: GroupsOf
) -> Iterator[Snapshot]:
    here = [job for job in snapshot.waiting if job.job_id not in hopeless]
    due = [hold for hold in held if hold.claim.due(snapshot.now)]
    for hold in due:
        claim = hold.claim
        mine = (job for job in here if belongs(job.owner, claim.holder, groups_of))
        waiting = _fitting(hold, mine)
        if waiting:
            left = _left(snapshot, (other for other in due if other is not hold), claim.nodes)
            yield replace(left, jobs=(*_fixed(snapshot), *waiting), growing=frozenset())


def _fixed(snapshot: Snapshot) -> Iterator[JobView]:
    return (replace(job, steady_until=inf) for job in snapshot.running)


def _fitting(hold: Hold, waiting: Iterable[JobView]) -> tuple[JobView, ...]:
    """Return the holders' jobs for which the reservation has slots, with their ranges cut to it."""
    left, found = hold.missing, list[JobView]()
    for job in sorted(waiting, key=lambda job: (-job.priority, job.turn)):
        chunks = min(job.max_chunks, left // job.chunk_slots)
        if chunks >= job.min_chunks:
            found.append(replace(job, max_chunks=chunks))
            left -= chunks * job.chunk_slots
    return tuple(found)


def _evictions(snapshot: Snapshot, held: tuple[Hold, ...]) -> Iterator[Resize]:
    done: set[int] = set()
    for hold in held:
        for job in hold.evicted:
            if job.job_id not in done:
                done.add(job.job_id)
                told = f"makes room: {hold.claim.told(snapshot.now)}"
                yield Resize(job.job_id, without(job, hold.slots), told)


def _moments(snapshot: Snapshot, held: Iterable[Hold]) -> Iterator[float]:
    """Yield when claims begin, lapse and end, and when jobs on claimed slots may be moved."""
    for hold in held:
        claim = hold.claim
        yield from (at for at in (claim.begins_at, claim.lapses_at(), claim.ends_at) if at is not None)
        if claim.due(snapshot.now):
            for job in snapshot.running:
                if hold.slots.intersection(as_slots(job.places)):
                    yield job.steady_until


def first(kept: Kept, placement: Placement) -> Iterator[tuple[Decision, ...]]:
    """Yield what is done before the policy is asked: room for claims, then what starts in reservations.

    A reservation's jobs go first in, first out, whatever the policy: they are its holders' own affair.
    """
    if kept.clearing:
        yield kept.clearing
    for snapshot in kept.inner:
        yield schedule(snapshot, policy("fifo"), kept_off(placement, kept.barred)).decisions


def meanwhile(kept: Kept, assignment: Assignment, *, elastic: bool) -> Snapshot | None:
    """Return what there is until the next claims begin, for those who end before; None if there is nothing.

    That is what all are kept off who are kept off anything, so that nobody else could start there, whatever
    the plan says. elastic: whether the policy changes ranges of running jobs: it would take back what it did
    not give itself, so that jobs of a range wait, and those after them.
    """
    if kept.next_begins_at == inf:
        return None
    here = [job for job in kept.snapshot.waiting if job.job_id not in assignment.places]
    coming = {job.job_id: kept.against.coming(job) for job in here}
    kept_off_by = {holds for holds in coming.values() if holds}
    ending = [job for job in sorted(here, key=lambda job: job.turn) if not coming[job.job_id]]
    jobs = tuple(takewhile(lambda job: _simple(job, elastic), ending))
    if not kept_off_by or not jobs:
        return None
    theirs = frozenset.intersection(*(slots_of(holds) for holds in kept_off_by))
    return _only(kept.snapshot, theirs, assignment, jobs)


def _simple(job: JobView, elastic: bool) -> bool:
    return job.goes_on is None and (not elastic or job.max_chunks == job.min_chunks)


def _only(
    snapshot: Snapshot, slots: frozenset[Slot], assignment: Assignment, jobs: tuple[JobView, ...]
) -> Snapshot | None:
    """Return the snapshot with those of these slots that nobody has or was assigned, for these jobs."""
    free = FreeSlots(dict.fromkeys(snapshot.free.names, ()))
    free.give(common(as_places(slots), snapshot.free))
    for places in assignment.places.values():
        free.take(common(places, free))
    used = {gang.gang_id for gang in assignment.warm.values()}
    warm = tuple(gang for gang in snapshot.warm if gang.gang_id not in used and free.has(gang.places))
    for gang in snapshot.warm:
        if gang not in warm:
            free.take(common(gang.places, free))
    if not free.count:
        return None
    none = FreeSlots(dict.fromkeys(free.names, ()))
    return replace(
        snapshot, jobs=(*_fixed(snapshot), *jobs), free=free, warm=warm, leaving=none, growing=frozenset()
    )
