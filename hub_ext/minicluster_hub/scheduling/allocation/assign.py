"""From a policy's plan to places: who gets which slots, in the job service and in the simulator alike.

A running job keeps its places where the plan lets it. One that the plan leaves out gives up its slots
only if another one is really placed on them. Where the policy restarts running jobs anyway, some move:
out of the way of a gang that finds room only in pieces, or together, if that is worth it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial

from minicluster_hub.scheduling.allocation.defragment import make_room
from minicluster_hub.scheduling.allocation.free_slots import (
    FreeSlots,
    Places,
    count_slots,
    joined,
    largest_parts,
)
from minicluster_hub.scheduling.allocation.reserve import Leaving, Reserve
from minicluster_hub.scheduling.allocation.takeover import Offer, left_of, take_over
from minicluster_hub.scheduling.base import (
    ChoosyPlacement,
    Grant,
    JobView,
    Placement,
    Plan,
    Policy,
    Snapshot,
    WarmGang,
)

_MOST_MADE_ROOM = 16
"""For so many gangs it is tried in one plan to move others: it takes long, and each move is a restart."""


@dataclass(frozen=True, slots=True)
class Assignment:
    """What should be: the places of each job that should run.

    warm: the gang that a waiting job takes over, which is part of its places.
    again_at: when it would be another though nothing happens, None if it would not.
    held_out: since when jobs wait for better places; the next snapshot is to have it.
    held_out_until: how long they do.
    """

    places: dict[int, Places]
    warm: dict[int, WarmGang]
    again_at: float | None = None
    held_out: dict[int, float] = field(default_factory=dict)
    held_out_until: dict[int, float] = field(default_factory=dict)


def assign(snapshot: Snapshot, policy: Policy, placement: Placement) -> Assignment:
    """Return the places of all jobs that should run. The same input gives the same answer."""
    table = _Table(snapshot, policy.plan(snapshot), placement)
    table.keep()
    table.shrink()
    table.place(defragment=policy.moves_running)
    table.grow()
    if policy.moves_running and table.choosy is not None:
        table.gather(table.choosy)
    return Assignment(table.places, table.used_warm, table.again_at(), table.held_out(), table.holding_out)


@dataclass
class _Table:
    """An assignment in the making.

    free: what nobody has or was given yet. left_out: running jobs that are not in the plan.
    holding_out: until when waiting jobs wait for better places.
    """

    snapshot: Snapshot
    plan: Plan
    placement: Placement
    places: dict[int, Places] = field(default_factory=dict)
    used_warm: dict[int, WarmGang] = field(default_factory=dict)
    holding_out: dict[int, float] = field(default_factory=dict)
    left_out: list[JobView] = field(default_factory=list)
    choosy: ChoosyPlacement | None = field(init=False)
    jobs: dict[int, JobView] = field(init=False)
    grants: dict[int, Grant] = field(init=False)
    warm: list[WarmGang] = field(init=False)
    free: FreeSlots = field(init=False)
    reserve: Reserve = field(init=False)

    def __post_init__(self) -> None:
        self.jobs = {job.job_id: job for job in self.snapshot.jobs}
        self.grants = {grant.job_id: grant for grant in self.plan.grants}
        self.choosy = self.placement if isinstance(self.placement, ChoosyPlacement) else None
        self.warm = sorted(self.snapshot.warm, key=lambda gang: gang.idle_since)
        self.free = self.snapshot.free.copy()
        for gang in self.warm:
            self.free.take(gang.places)
        for job in self.snapshot.running:
            if self._stays(job):
                self.places[job.job_id] = job.places
            elif job.job_id in self.grants:
                self.free.give(job.places)
            else:
                self.left_out.append(job)

    def _stays(self, job: JobView) -> bool:
        """Whether nothing is decided about a running job. One on a node that is down has lost a task."""
        return job.fixed(self.snapshot.now) or any(node not in self.free for node, _ in job.places)

    def keep(self) -> None:
        """Leave running jobs where they are if they are to have as much as they have, or more."""
        for job, grant in self._changeable():
            if grant.chunks >= job.chunks:
                self._settle(job, job.places)

    def shrink(self) -> None:
        """Take from running jobs what is too much, on the nodes where they have least."""
        for job, grant in self._changeable():
            if grant.chunks < job.chunks:
                self._settle(job, largest_parts(job.places, grant.chunks * job.chunk_slots))

    def place(self, *, defragment: bool) -> None:
        """Find places for those that wait, in the plan's order. Who was left out keeps what nobody got."""
        giving_way = sorted(self.left_out, key=lambda job: (job.priority, -job.submitted_at, -job.job_id))
        leaving = (Leaving((place,)) for place in self.snapshot.leaving.all())
        self.reserve = Reserve((*self.warm, *leaving, *giving_way), self.free, self.plan.kept)
        tries = _MOST_MADE_ROOM if defragment else 0
        for grant in self.plan.grants:
            job = self.jobs[grant.job_id]
            if grant.job_id in self.places:
                continue
            if self._must_settle(job):
                break  # Nobody overtakes it meanwhile.
            if self._place_warm(job, grant.chunks) or self._place_new(job, grant.chunks):
                continue
            if tries and job.job_id not in self.holding_out:
                tries -= 1
                self._place_by_moves(job, grant.chunks)
            if self.plan.in_turn and job.job_id not in self.places:
                break
        self.places |= {job.job_id: job.places for job in self.reserve.left() if isinstance(job, JobView)}

    def grow(self) -> None:
        """Give running jobs what they are to have more, and those that grow live what nobody waits for."""
        nobody_waits = all(job.job_id in self.places for job in self.snapshot.waiting)
        for job in self.snapshot.running:
            places = self.places.get(job.job_id)
            if places is None:
                continue
            grant = self.grants.get(job.job_id)
            has = count_slots(places) // job.chunk_slots
            planned = 0 if grant is None or self._stays(job) else min(grant.chunks, job.max_chunks)
            if planned > has:
                self._add(job, places, planned - has, self._with_warm())
            elif nobody_waits and job.job_id in self.snapshot.growing and job.max_chunks > has:
                self._add(job, places, job.max_chunks - has, self.reserve.outside)

    def _with_warm(self) -> FreeSlots:
        free = self.reserve.outside.copy()
        for gang in self.warm:
            free.give(gang.places)
        return free

    def _add(self, job: JobView, places: Places, missing: int, others: FreeSlots) -> None:
        others = others.without(node for node, _ in places) if job.scatter else others
        room = min(missing, others.most_chunks(job.chunk_slots, scatter=job.scatter))
        here = sum(len(others.on(node)) // job.chunk_slots for node, _ in places)
        for chunks in dict.fromkeys((room, min(room, here))):
            more = self._fit(job, chunks, others) if chunks else None
            if more:
                self._give(job.job_id, more)
                self.places[job.job_id] = joined(places, more)
                return

    def gather(self, placement: ChoosyPlacement) -> None:
        """Move running jobs to better places where that is worth a restart, or costs none."""
        for job, _ in self._changeable():
            places = self.places[job.job_id]
            if job.job_id in self.snapshot.growing and places != job.places:
                continue  # What it gets more joins it live.
            self.free.give(places)
            better = placement.better(job, places, self.free, self.snapshot.topology, self.snapshot.now)
            self.free.take(better or places)
            self.places[job.job_id] = better or places

    def again_at(self) -> float | None:
        times = [] if self.plan.again_at is None else [self.plan.again_at]
        return min((*times, *self.holding_out.values()), default=None)

    def held_out(self) -> dict[int, float]:
        """Return since when jobs wait for better places, or have done so for a while before."""
        now, before = self.snapshot.now, self.snapshot.held_out
        waiting = (job.job_id for job in self.snapshot.waiting if job.job_id not in self.places)
        holding = (job_id for job_id in waiting if job_id in self.holding_out or job_id in before)
        return {job_id: before.get(job_id, now) for job_id in holding}

    def _changeable(self) -> Iterator[tuple[JobView, Grant]]:
        """Yield the running jobs of the plan about which something is decided, with their grants."""
        for job in self.snapshot.running:
            grant = self.grants.get(job.job_id)
            if grant is not None and not self._stays(job):
                yield job, grant

    def _settle(self, job: JobView, places: Places) -> None:
        self.places[job.job_id] = places
        self.free.take(places)

    def _give(self, job_id: int, places: Places) -> None:
        """Place a job where others may have to give way."""
        unknown = [node for node, _ in places if node not in self.free]
        if unknown:
            raise ValueError(f"job {job_id} was placed on nodes that are not up: {unknown}")
        self.places[job_id] = places
        for holder in self.reserve.take(places):
            if isinstance(holder, WarmGang):
                self.warm.remove(holder)

    def _fit(self, job: JobView, chunks: int, free: FreeSlots) -> Places | None:
        return self.placement.place(job, chunks, free, self.snapshot.topology)

    def _must_settle(self, job: JobView) -> bool:
        left = left_of(job, self.warm)
        return job.settles and left is not None and left.chunks < job.min_chunks

    def _place_warm(self, job: JobView, chunks: int) -> bool:
        found = take_over(job, chunks, Offer(self.warm, self.free, self.reserve), partial(self._fit, job))
        if found is None:
            return False
        self.used_warm[job.job_id], places = found
        self._give(job.job_id, places)
        return True

    def _place_new(self, job: JobView, chunks: int) -> bool:
        """Place on free slots; failing that, on those of warm gangs and of jobs that were left out too."""

        def good(free: FreeSlots) -> Places | None:
            return self._good_places(job, chunks, free)

        places = good(self.reserve.outside)
        if places is None and self.reserve.keeps and job.job_id not in self.holding_out:
            places = good(self.free)
        if places is None:
            places = self.reserve.find(job, chunks, good)
        if places is not None:
            self.holding_out.pop(job.job_id, None)
            self._give(job.job_id, places)
        return places is not None

    def _good_places(self, job: JobView, chunks: int, free: FreeSlots) -> Places | None:
        """Return places, None as well if the job should rather wait for better ones."""
        places = self._fit(job, chunks, free)
        if places is not None and self.choosy is not None:
            patience_s = self.choosy.patience_s(job, places, self.snapshot.topology)
            until = self.snapshot.held_out.get(job.job_id, self.snapshot.now) + patience_s
            if until > self.snapshot.now:
                self.holding_out[job.job_id] = until
                return None
        return places

    def _place_by_moves(self, job: JobView, chunks: int) -> None:
        """Place a gang where running jobs move out of its way, if that helps."""
        movable = [(other, self.places[other.job_id]) for other, _ in self._changeable()]
        moves = make_room(job, chunks, movable, self.reserve.all, self._fit)
        if moves is None:
            return
        for job_id in moves.moved:
            self.reserve.give(self.places[job_id])
        for job_id, places in ((job.job_id, moves.places), *moves.moved.items()):
            self._give(job_id, places)
