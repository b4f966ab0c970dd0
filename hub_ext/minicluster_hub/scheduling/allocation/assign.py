"""From a policy's plan to places: which job gets which slots, in the job service and in the simulator.

A running job keeps its places if the plan allows it. A running job that the plan leaves out loses its slots
only if another job is placed on them. Under a preemptive policy, some running jobs move: out of the way of a
gang if enough slots are free but scattered, or closer together if that is worth a restart.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial

from minicluster_hub.scheduling.allocation.allocation import Allocation, Holder, ReleasedNode
from minicluster_hub.scheduling.allocation.free_slots import (
    FreeSlots,
    Places,
    joined,
    largest_parts,
    replicas_in,
)
from minicluster_hub.scheduling.allocation.moves import make_room
from minicluster_hub.scheduling.allocation.warm_gangs import remainder_of, take_over
from minicluster_hub.scheduling.base import (
    DelayScheduling,
    JobView,
    Placement,
    Plan,
    Policy,
    Snapshot,
    WarmGang,
)
from minicluster_hub.scheduling.planning.serving_first import plan_with_replicas

_MOST_MOVED_FOR = 16
"""The most gangs for which one plan tries to move other jobs: it takes long, and each move is a restart."""


@dataclass(frozen=True, slots=True)
class Assignment:
    """The places of each job that should run.

    warm: by waiting job, the warm gang that it takes over; its slots are part of the job's places.
    again_at: when the assignment changes even if nothing happens; None: it does not.
    delayed_since: by job, since when it has waited for better slots; input of the next snapshot.
    delayed_until: by job, when it stops waiting for better slots.
    """

    places: dict[int, Places]
    warm: dict[int, WarmGang]
    again_at: float | None = None
    delayed_since: dict[int, float] = field(default_factory=dict[int, float])
    delayed_until: dict[int, float] = field(default_factory=dict[int, float])


def assign(snapshot: Snapshot, policy: Policy, placement: Placement) -> Assignment:
    """Return the places of all jobs that should run."""
    assigner = _Assigner(snapshot, plan_with_replicas(policy, snapshot), placement)
    assigner.place_waiting(may_move=policy.preemptive)
    assigner.grow()
    if policy.preemptive:
        assigner.consolidate()
    return assigner.assignment()


class _Assigner:
    """Carries out a plan, beginning with an allocation in which running jobs have what the plan leaves them.

    warm, delayed_until: as in Assignment.
    """

    def __init__(self, snapshot: Snapshot, plan: Plan, placement: Placement) -> None:
        self.snapshot = snapshot
        self.plan = plan
        self.placement = placement
        self.delay = placement if isinstance(placement, DelayScheduling) else None
        self.grants = {grant.job_id: grant for grant in plan.grants}
        self.warm: dict[int, WarmGang] = {}
        self.delayed_until: dict[int, float] = {}
        free, kept, left_out = snapshot.free.copy(), dict[int, Places](), list[JobView]()
        for gang in snapshot.warm:
            free.remove(gang.places)
        for job in snapshot.running:
            grant = self.grants.get(job.job_id)
            if self._stays(job):
                kept[job.job_id] = job.places
            elif grant is None:
                left_out.append(job)
            else:
                less = grant.replicas < job.replicas
                slots = grant.replicas * job.slots_per_replica
                kept[job.job_id] = largest_parts(job.places, slots) if less else job.places
                free.add(job.places)
                free.remove(kept[job.job_id])
        self.allocation = Allocation(free, _preemptible(snapshot, left_out), plan.reserved)
        self.places = self.allocation.places
        self.places.update(kept)

    def place_waiting(self, *, may_move: bool) -> None:
        """Place the waiting jobs in the plan's order. Jobs without a grant keep slots that no job got."""
        tries = _MOST_MOVED_FOR if may_move else 0
        jobs = {job.job_id: job for job in self.snapshot.jobs}
        for grant in self.plan.grants:
            job = jobs[grant.job_id]
            if job.job_id in self.places:
                continue
            if self._must_wait_for_network(job):
                break  # No job overtakes it meanwhile.
            if self._place_warm(job, grant.replicas) or self._place_new(job, grant.replicas):
                continue
            if tries and job.job_id not in self.delayed_until:
                tries -= 1
                self._place_by_moves(job, grant.replicas)
            if self.plan.head_blocks and job.job_id not in self.places:
                break
        for holder in self.allocation.preemptible.values():
            if isinstance(holder, JobView):
                self.places[holder.job_id] = holder.places

    def grow(self) -> None:
        """Assign running jobs the replicas that the plan adds; if no job waits, growing jobs get the rest."""
        nobody_waits = all(job.job_id in self.places for job in self.snapshot.waiting)
        for job in self.snapshot.running:
            places = self.places.get(job.job_id)
            if places is None:
                continue
            grant = self.grants.get(job.job_id)
            has = replicas_in(places, job.slots_per_replica)
            planned = 0 if grant is None or self._stays(job) else min(grant.replicas, job.max_replicas)
            if planned > has:
                free = self.allocation.unreserved.copy()
                for gang in self.allocation.warm:
                    free.add(gang.places)
                self._add(job, places, planned - has, free)
            elif nobody_waits and job.job_id in self.snapshot.growing and job.max_replicas > has:
                self._add(job, places, job.max_replicas - has, self.allocation.unreserved)

    def consolidate(self) -> None:
        """Move running jobs to better places if that is worth a restart, or if they restart in any case."""
        delay, free = self.delay, self.allocation.free
        if delay is None:
            return
        for job in self._changeable():
            places = self.places[job.job_id]
            if job.job_id in self.snapshot.growing and places != job.places:
                continue  # Its new nodes join it without a restart.
            free.add(places)
            better = delay.better_places(job, places, free, self.snapshot.topology, self.snapshot.now)
            free.remove(better or places)
            self.places[job.job_id] = better or places

    def assignment(self) -> Assignment:
        """Return the result. A job that waited for better places before still counts as waiting for them."""
        now, before = self.snapshot.now, self.snapshot.delayed_since
        waiting = (job.job_id for job in self.snapshot.waiting if job.job_id not in self.places)
        holding = (job_id for job_id in waiting if job_id in self.delayed_until or job_id in before)
        times = [] if self.plan.again_at is None else [self.plan.again_at]
        return Assignment(
            self.places,
            self.warm,
            min((*times, *self.delayed_until.values()), default=None),
            {job_id: before.get(job_id, now) for job_id in holding},
            self.delayed_until,
        )

    def _stays(self, job: JobView) -> bool:
        """Whether a running job is left as it is: it is protected, or one of its nodes is down."""
        return not job.is_preemptible(self.snapshot.now) or any(
            node not in self.snapshot.free for node, _ in job.places
        )

    def _changeable(self) -> Iterator[JobView]:
        """Yield the running jobs of the plan whose places may change."""
        return (job for job in self.snapshot.running if job.job_id in self.grants and not self._stays(job))

    def _must_wait_for_network(self, job: JobView) -> bool:
        remainder = remainder_of(job, self.allocation) if job.awaits_network else None
        return remainder is not None and remainder.replicas < job.min_replicas

    def _fit(self, job: JobView, replicas: int, free: FreeSlots) -> Places | None:
        """Return places; those of a model's replica where the fewest of its others are, so that one lost node
        does not end them all.
        """
        here = self._replicas_by_node(job) if job.serves else Counter[str]()
        for most in range(max(here.values(), default=0)):
            apart = free.without(node for node, count in here.items() if count > most)
            if places := self.placement.place(job, replicas, apart, self.snapshot.topology):
                return places
        return self.placement.place(job, replicas, free, self.snapshot.topology)

    def _replicas_by_node(self, job: JobView) -> Counter[str]:
        others = (one for one in self.snapshot.jobs if one.model_id == job.model_id)
        return Counter(node for one in others for node, _ in self.places.get(one.job_id, ()))

    def _place_warm(self, job: JobView, replicas: int) -> bool:
        found = take_over(job, replicas, self.allocation, partial(self._fit, job))
        if found is None:
            return False
        self.warm[job.job_id], places = found
        self.allocation.assign(job.job_id, places)
        return True

    def _place_new(self, job: JobView, replicas: int) -> bool:
        """Place a job on free slots, else also on those of warm gangs and of jobs without a grant."""
        good = partial(self._good_places, job, replicas)
        allocation = self.allocation
        places = good(allocation.unreserved)
        if places is None and allocation.reserves and job.job_id not in self.delayed_until:
            places = good(allocation.free)
        if places is None:
            places = allocation.preempt(job, replicas, good)
        if places is not None:
            self.delayed_until.pop(job.job_id, None)
            allocation.assign(job.job_id, places)
        return places is not None

    def _good_places(self, job: JobView, replicas: int, free: FreeSlots) -> Places | None:
        """Return places; None also if the job should wait for better ones."""
        places = self._fit(job, replicas, free)
        if places is not None and self.delay is not None:
            max_delay_s = self.delay.max_delay_s(job, places, self.snapshot.topology)
            until = self.snapshot.delayed_since.get(job.job_id, self.snapshot.now) + max_delay_s
            if until > self.snapshot.now:
                self.delayed_until[job.job_id] = until
                return None
        return places

    def _place_by_moves(self, job: JobView, replicas: int) -> None:
        """Place a gang by moving running jobs out of its way, if that helps."""
        movable = [(other, self.places[other.job_id]) for other in self._changeable()]
        moves = make_room(job, replicas, movable, self.allocation.obtainable(), self._fit)
        if moves is not None:
            self.allocation.move(moves)

    def _add(self, job: JobView, places: Places, missing: int, others: FreeSlots) -> None:
        """Assign a running job more replicas; if those on other nodes do not help it, only on its nodes."""
        others = others.without(node for node, _ in places) if job.one_replica_per_node else others
        room = min(
            missing,
            others.replicas_that_fit(job.slots_per_replica, one_replica_per_node=job.one_replica_per_node),
        )
        here = sum(others.room(node, job.slots_per_replica) for node, _ in places)
        for replicas in dict.fromkeys((room, min(room, here))):
            more = self._fit(job, replicas, others) if replicas else None
            if more:
                self.allocation.assign(job.job_id, more)
                self.places[job.job_id] = joined(places, more)
                return


def _preemptible(snapshot: Snapshot, left_out: list[JobView]) -> Iterator[Holder]:
    """Yield the holders that lose slots first: warm gangs, released nodes, jobs with the lowest priority."""
    yield from sorted(snapshot.warm, key=lambda gang: gang.idle_since)
    yield from (ReleasedNode((place,)) for place in snapshot.releasing.all())
    yield from sorted(left_out, key=lambda job: (job.priority, -job.submitted_at, -job.job_id))
