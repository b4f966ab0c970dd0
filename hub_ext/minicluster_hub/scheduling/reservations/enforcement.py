"""Enforces reservations under every policy: limits its snapshot, and starts jobs inside reservations.

A reservation that has begun is a small cluster of its own: its holders' jobs that fit into it are planned
first, among themselves. Then the policy plans all jobs on the slots that are not reserved now. Jobs that
finish before a reservation starts may use its slots, even ahead of earlier jobs; all others are excluded from
them, whatever the placement. When a reservation begins, running jobs that can be moved release its slots; it
gets the slots of other jobs when they end.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import takewhile
from math import inf

from minicluster_hub.jobs.records import Wait
from minicluster_hub.scheduling.allocation.assign import Assignment
from minicluster_hub.scheduling.allocation.free_slots import FreeSlots, Places, common
from minicluster_hub.scheduling.base import JobView, Placement, Snapshot, WarmGang
from minicluster_hub.scheduling.planning.moments import soonest
from minicluster_hub.scheduling.policies import policy
from minicluster_hub.scheduling.reservations.excluding import excluding
from minicluster_hub.scheduling.reservations.reservation import GroupsOf, ReservationView, belongs
from minicluster_hub.scheduling.reservations.reserved_slots import (
    Exclusions,
    ReservedSlots,
    Slot,
    as_places,
    as_slots,
    reserved_slots,
    room_for,
    slots_of,
    without,
)
from minicluster_hub.scheduling.scheduler import Decision, Reclaim, Resize, schedule


@dataclass(frozen=True, slots=True)
class Enforcement:
    """A snapshot divided between reservations and everybody.

    snapshot: the policy's input, without the slots of reservations that have begun.
    inside: one snapshot for each reservation that has begun and has waiting jobs of its holders.
    evictions: decisions that free reserved slots first. excluded: by job id, slots that the job may not take.
    reasons: by job id, why a job waits that is not in the snapshot because it fits on reserved slots only.
    """

    snapshot: Snapshot
    exclusions: Exclusions
    inside: tuple[Snapshot, ...] = ()
    evictions: tuple[Decision, ...] = ()
    excluded: Mapping[int, Places] = field(default_factory=dict[int, Places])
    reasons: Mapping[int, str] = field(default_factory=dict[int, str])
    again_at: float | None = None

    def shown(self) -> Snapshot:
        """Return the snapshot that explains why jobs wait: in it, reserved slots are part of the cluster."""
        return replace(self.snapshot, topology=self.exclusions.snapshot.topology)

    @property
    def next_begins_at(self) -> float:
        """When the next reservation begins; infinity if none is to come."""
        now = self.snapshot.now
        begins = (
            one.reservation.begins_at
            for one in self.exclusions.all_reserved
            if not one.reservation.begun(now)
        )
        return min(begins, default=inf)

    def known_until(self, job: JobView) -> float:
        """Return the time up to which the start of a waiting job can be forecast.

        Later the job would run into a reservation, or one has begun that leaves an unknown number of slots.
        """
        return min(self.next_begins_at, self.exclusions.runs_into(job))

    def explained(self, waits: Iterable[Wait], starts: Mapping[int, float]) -> Iterator[Wait]:
        """Yield the waits. If a job would start but for a reservation, the reservation is the reason.

        Jobs that are not in the snapshot come last. starts: the forecast, which is valid until `known_until`.
        """
        if not self.exclusions.all_reserved:
            yield from waits
            return
        jobs = {job.job_id: job for job in self.snapshot.waiting}
        for wait in waits:
            job = jobs[wait.job_id]
            own_reason = self._reason(job)
            at = starts.get(wait.job_id) if own_reason else wait.expected_start_at
            known = at is not None and at < self.known_until(job)
            yield replace(wait, reason=own_reason or wait.reason, expected_start_at=at if known else None)
        for position, (job_id, reason) in enumerate(sorted(self.reasons.items()), len(jobs) + 1):
            yield Wait(job_id, position, reason, None)

    def _reason(self, job: JobView) -> str:
        if job.job_id not in self.exclusions.by_job:
            return ""
        free = self.snapshot.free.copy()
        free.remove(common(self.excluded[job.job_id], free))
        if room_for(job, free) >= job.min_replicas:
            return ""
        for places in self.exclusions.unused(job):
            free.add(places)
        return self.exclusions.describe(job) if room_for(job, free) >= job.min_replicas else ""


def enforce(snapshot: Snapshot, reservations: Iterable[ReservationView], groups_of: GroupsOf) -> Enforcement:
    """Divide a snapshot between reservations and everybody."""
    now = snapshot.now
    all_reserved = reserved_slots(snapshot, (one for one in reservations if not one.over(now)), groups_of)
    exclusions = Exclusions.of(snapshot, all_reserved, groups_of)
    if not all_reserved:
        return Enforcement(snapshot, exclusions)
    excluded, reasons = exclusions.excluded(), exclusions.never_fit()
    ending = _warm_gangs_to_end(snapshot, all_reserved, excluded, groups_of)
    stays = _without_gangs(snapshot, ending)
    everybodys = _without(stays, (one for one in all_reserved if one.reservation.begun(now)))
    return Enforcement(
        replace(everybodys, jobs=tuple(job for job in snapshot.jobs if job.job_id not in reasons)),
        exclusions,
        tuple(_inside(stays, all_reserved, reasons, groups_of)),
        (*_resizes(snapshot, all_reserved), *(Reclaim(gang.gang_id) for gang in ending)),
        excluded,
        reasons,
        soonest(now, _moments(snapshot, all_reserved)),
    )


def _warm_gangs_to_end(
    snapshot: Snapshot,
    all_reserved: tuple[ReservedSlots, ...],
    excluded: Mapping[int, Places],
    groups_of: GroupsOf,
) -> list[WarmGang]:
    """Return the warm gangs on slots that are reserved for others, or that their owner's job may not use."""
    begun = [one for one in all_reserved if one.reservation.begun(snapshot.now)]
    holders = {slot: one.reservation.holder for one in begun for slot in one.slots}
    unusable: dict[str, set[Slot]] = {}
    for job in snapshot.waiting:
        unusable.setdefault(job.owner, set()).update(as_slots(excluded.get(job.job_id, ())))

    def has_to_end(gang: WarmGang) -> bool:
        return any(
            slot in unusable.get(gang.owner, ())
            or (slot in holders and not belongs(gang.owner, holders[slot], groups_of))
            for slot in as_slots(gang.places)
        )

    return [gang for gang in snapshot.warm if has_to_end(gang)]


def _without_gangs(snapshot: Snapshot, ending: list[WarmGang]) -> Snapshot:
    """Return the snapshot in which these warm gangs are releasing their slots."""
    free, releasing = snapshot.free.copy(), snapshot.releasing.copy()
    for gang in ending:
        free.remove(gang.places)
        releasing.add(gang.places)
    warm = tuple(gang for gang in snapshot.warm if gang not in ending)
    return replace(snapshot, free=free, releasing=releasing, warm=warm)


def _without(snapshot: Snapshot, taken: Iterable[ReservedSlots], nodes: tuple[str, ...] = ()) -> Snapshot:
    """Return the snapshot without these reserved slots. nodes: only these have free slots; (): all nodes."""
    free, releasing = snapshot.free.copy(), snapshot.releasing.copy()
    slots = dict(snapshot.topology.slots)
    gone = [one.places for one in taken]
    for node, on_it in (place for places in gone for place in places):
        slots[node] -= len(on_it)
    if nodes:
        others = (node for node in free.names if node not in nodes)
        gone += [((node, (*free.numbers(node), *releasing.numbers(node))),) for node in others]
    for places in gone:
        free.remove(common(places, free))
        releasing.remove(common(places, releasing))
    warm = tuple(gang for gang in snapshot.warm if free.has(gang.places))
    for gang in snapshot.warm:
        if gang not in warm:
            free.remove(common(gang.places, free))  # Part of it is reserved: no job can take over the rest.
    topology = replace(snapshot.topology, slots=slots)
    return replace(snapshot, free=free, releasing=releasing, topology=topology, warm=warm)


def _inside(
    snapshot: Snapshot,
    all_reserved: tuple[ReservedSlots, ...],
    never_fit: Mapping[int, str],
    groups_of: GroupsOf,
) -> Iterator[Snapshot]:
    """Yield the snapshot inside each reservation that has begun: its slots and its holders' waiting jobs."""
    here = [job for job in snapshot.waiting if job.job_id not in never_fit]
    begun = [one for one in all_reserved if one.reservation.begun(snapshot.now)]
    for one in begun:
        reservation = one.reservation
        mine = (job for job in here if belongs(job.owner, reservation.holder, groups_of))
        waiting = _fitting(one, mine)
        if waiting:
            left = _without(snapshot, (other for other in begun if other is not one), reservation.nodes)
            yield replace(left, jobs=(*_fixed(snapshot), *waiting), growing=frozenset())


def _fixed(snapshot: Snapshot) -> Iterator[JobView]:
    return (replace(job, not_preemptible_until=inf) for job in snapshot.running)


def _fitting(one: ReservedSlots, waiting: Iterable[JobView]) -> tuple[JobView, ...]:
    """Return the waiting jobs that fit into a reservation, with their maximum lowered to its slots."""
    left, found = float(one.missing), list[JobView]()
    for job in sorted(waiting, key=lambda job: (-job.priority, job.submit_order)):
        replicas = min(job.max_replicas, int(left // job.slots_per_replica))
        if replicas >= job.min_replicas:
            found.append(replace(job, max_replicas=replicas))
            left -= replicas * job.slots_per_replica
    return tuple(found)


def _resizes(snapshot: Snapshot, all_reserved: tuple[ReservedSlots, ...]) -> Iterator[Resize]:
    done: set[int] = set()
    for one in all_reserved:
        for job in one.evicted:
            if job.job_id not in done:
                done.add(job.job_id)
                text = f"makes room: {one.reservation.describe(snapshot.now)}"
                yield Resize(job.job_id, without(job, one.slots), text)


def _moments(snapshot: Snapshot, all_reserved: Iterable[ReservedSlots]) -> Iterator[float]:
    """Yield when reservations begin, lapse and end, and when jobs on their slots may be moved."""
    for one in all_reserved:
        reservation = one.reservation
        yield from (
            at
            for at in (reservation.begins_at, reservation.lapses_at(), reservation.ends_at)
            if at is not None
        )
        if reservation.begun(snapshot.now):
            for job in snapshot.running:
                if one.slots.intersection(as_slots(job.places)):
                    yield job.not_preemptible_until


def decisions_before_policy(enforced: Enforcement, placement: Placement) -> Iterator[tuple[Decision, ...]]:
    """Yield the decisions that come before the policy's: evictions, then starts inside reservations.

    Jobs inside a reservation start first in, first out, whatever the policy.
    """
    if enforced.evictions:
        yield enforced.evictions
    for snapshot in enforced.inside:
        yield schedule(snapshot, policy("fifo"), excluding(placement, enforced.excluded)).decisions


def until_next_reservation(
    enforced: Enforcement, assignment: Assignment, *, elastic: bool
) -> Snapshot | None:
    """Return the snapshot of jobs that end before the next reservations begin; None if none can start.

    Its slots are those that no excluded job may use, so these jobs delay no other job. elastic: whether the
    policy resizes running jobs. It would take back slots that it did not give: the first job with a range
    waits, and so do the jobs after it.
    """
    if enforced.next_begins_at == inf:
        return None
    here = [job for job in enforced.snapshot.waiting if job.job_id not in assignment.places]
    coming = {job.job_id: enforced.exclusions.coming(job) for job in here}
    excluding_some = {one for one in coming.values() if one}
    ending = [job for job in sorted(here, key=lambda job: job.submit_order) if not coming[job.job_id]]
    jobs = tuple(takewhile(lambda job: _simple(job, elastic), ending))
    if not excluding_some or not jobs:
        return None
    theirs = frozenset[Slot].intersection(*map(slots_of, excluding_some))
    return _only(enforced.snapshot, theirs, assignment, jobs)


def _simple(job: JobView, elastic: bool) -> bool:
    return job.resumes_gang_id is None and (not elastic or job.max_replicas == job.min_replicas)


def _only(
    snapshot: Snapshot, slots: frozenset[Slot], assignment: Assignment, jobs: tuple[JobView, ...]
) -> Snapshot | None:
    """Return the snapshot of these jobs and of the free, unassigned slots among `slots`."""
    free = FreeSlots(dict.fromkeys(snapshot.free.names, ()), snapshot.topology.whole_only)
    free.add(common(as_places(slots), snapshot.free))
    for places in assignment.places.values():
        free.remove(common(places, free))
    used = {gang.gang_id for gang in assignment.warm.values()}
    warm = tuple(gang for gang in snapshot.warm if gang.gang_id not in used and free.has(gang.places))
    for gang in snapshot.warm:
        if gang not in warm:
            free.remove(common(gang.places, free))
    if not free.count:
        return None
    none = FreeSlots(dict.fromkeys(free.names, ()))
    return replace(
        snapshot, jobs=(*_fixed(snapshot), *jobs), free=free, warm=warm, releasing=none, growing=frozenset()
    )
