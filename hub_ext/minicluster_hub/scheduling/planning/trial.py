"""A policy tries its order: each job is given slots, takes them from others, or waits with a reservation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from math import inf

from minicluster_hub.scheduling.allocation.allocation import Allocation, Gang, Holder
from minicluster_hub.scheduling.allocation.filling import best_fit, fill
from minicluster_hub.scheduling.allocation.free_slots import FreeSlots, Places, common, count_slots, joined
from minicluster_hub.scheduling.allocation.moves import make_room
from minicluster_hub.scheduling.base import Grant, JobView, Snapshot
from minicluster_hub.scheduling.planning.ageing import Ageing
from minicluster_hub.scheduling.planning.estimates import latest_end
from minicluster_hub.scheduling.planning.moments import movable

Level = Callable[[JobView], float]
"""A job takes slots only from jobs of a higher level; those of a lower level are served first."""
_MOST_MOVED_FOR = 4
"""For so many gangs others are moved in one plan: each move is a restart."""


class Trial(Allocation):
    """An allocation by best fit, of which only the sizes count: `assign` places by the placement in use.

    preemptible: running jobs that may lose their slots, the first to be served first; all others keep theirs.
    moved_for: waiting jobs that fit only if running jobs move out of their way.
    reservation: of the first job that does not fit and is not to be delayed by those after it.
    """

    def __init__(self, snapshot: Snapshot, preemptible: Sequence[JobView] = ()) -> None:
        super().__init__(snapshot.obtainable(), reversed(preemptible))
        self.snapshot = snapshot
        self.moved_for: set[int] = set()
        self.reservation: HeadReservation | None = None
        self._jobs = {job.job_id: job for job in snapshot.jobs}
        self._movable = {job.job_id for job in preemptible}
        self._never_moved_for: set[Gang] = set()
        for job in snapshot.running:
            if job.job_id not in self._movable:
                self.places[job.job_id] = job.places

    @classmethod
    def of_all_movable(cls, snapshot: Snapshot) -> Trial:
        """Return a trial where all running jobs that may be moved have to be given slots again."""
        trial = cls(snapshot, jobs := movable(snapshot))
        for job in jobs:
            trial.retain(job)
            trial.free.give(job.places)
        return trial

    def grants(self) -> tuple[Grant, ...]:
        return tuple(Grant(job_id, self.replicas(self._jobs[job_id])) for job_id in self.places)

    def replicas(self, job: JobView) -> int:
        """Return how many replicas a job was given."""
        return count_slots(self.places.get(job.job_id, ())) // job.slots_per_replica

    def left_waiting(self) -> list[JobView]:
        return [job for job in self.snapshot.waiting if job.job_id not in self.places]

    def in_turn(self, ageing: Ageing) -> bool:
        """Whether nobody may overtake one without a place: an overdue one, or one that others move for."""
        started = (job for job in self.snapshot.waiting if job.job_id in self.places)
        return bool(self.moved_for) or any(ageing.overdue(job, self.snapshot.now) for job in started)

    def reserved(self) -> Places:
        """Return the free slots of the reservation."""
        return self.reservation.part_of(self.snapshot.obtainable()) if self.reservation else ()

    def keep(self, job: JobView) -> None:
        """Let a running job have what it has, unless it has lost it."""
        if self.retain(job):
            self.places[job.job_id] = job.places

    def start(self, job: JobView, level: Level | None = None) -> bool:
        """Give a waiting job the most that is free; failing that, its minimum: taken from the last jobs, or
        found by moving others.
        """
        most = min(job.max_replicas, _room(job, self.free))
        if most >= job.min_replicas:  # If it gets none now, it is because of the reservation.
            return any(self.seat(job, replicas) for replicas in dict.fromkeys((most, job.min_replicas)))

        def may_preempt(holder: Holder) -> bool:
            return level is None or (isinstance(holder, JobView) and level(holder) > level(job))

        places = self.preempt(
            job, job.min_replicas, lambda free: best_fit(job, job.min_replicas, free), may_preempt
        )
        return self._give_if_allowed(job, places) if places else self.move_for(job, level)

    def move_for(self, job: JobView, level: Level | None = None) -> bool:
        """Give a waiting job its minimum where enough slots are free, but not together: others move."""
        gang = job.min_replicas, job.slots_per_replica, job.scatter
        enough = self.free.count >= job.min_replicas * job.slots_per_replica
        full = self.reservation or len(self.moved_for) >= _MOST_MOVED_FOR or gang in self._never_moved_for
        if job.runs or not enough or full:
            return False
        retained = [
            holder
            for holder in self.preemptible.values()
            if level and isinstance(holder, JobView) and level(holder) <= level(job)
        ]
        others = [(self._jobs[i], self.places[i]) for i in sorted(self._movable) if i in self.places]
        others += [(holder, holder.places) for holder in reversed(retained)]
        moves = make_room(job, job.min_replicas, others, self.free, best_fit)
        if moves is None:
            self._never_moved_for.add(gang)
            return False
        for holder in reversed(retained):
            self.keep(holder)
        self.move(moves)
        self.moved_for.add(job.job_id)
        return True

    def seat(self, job: JobView, replicas: int, nodes: Iterable[str] | None = None) -> bool:
        """Give a job so many replicas, on these nodes in this order; a reservation may forbid a start."""
        places = fill(
            job, replicas, self.free, self.free.nodes(job.slots_per_replica) if nodes is None else nodes
        )
        return places is not None and self._give_if_allowed(job, places)

    def add_one(self, job: JobView, nodes: Iterable[str]) -> bool:
        """Give a job one more replica, on the first of these nodes that has room."""
        more = fill(job, 1, self.free, nodes)
        if more is None:
            return False
        self.free.take(more)
        self.places[job.job_id] = joined(self.places[job.job_id], more)
        return True

    def reserve(self, job: JobView, level: Level | None = None) -> None:
        """Reserve slots for a job that did not fit, the first of all; not for one that never will."""
        if self.reservation:
            return
        now, later = self.snapshot.now, self.free.copy()
        ends = [*_server_ends(self.snapshot), *self._ends_of_given()]
        for holder in self.preemptible.values():
            if not isinstance(holder, JobView) or level is None or level(holder) > level(job):
                later.give(holder.places)
            else:
                ends.append((latest_end(holder, now), holder.places))
        reservation = HeadReservation(job, later, ends)
        if reservation.possible:
            self.reservation = reservation

    def _give_if_allowed(self, job: JobView, places: Places) -> bool:
        reservation = None if job.runs else self.reservation
        if reservation and not reservation.allows(job, places, self.snapshot.now):
            return False
        self.give(job.job_id, places)
        return True

    def _ends_of_given(self) -> Iterator[tuple[float, Places]]:
        now = self.snapshot.now
        for job_id, places in self.places.items():
            job = self._jobs[job_id]
            end = latest_end(job, now)
            yield min(end, job.steady_until) if job.fixed(now) else end, places


class HeadReservation:
    """When a job will fit at the latest (`starts_at`), and what is free then (`later`).

    Others may start before it only if they do not delay it.
    """

    def __init__(self, job: JobView, later: FreeSlots, ends: Iterable[tuple[float, Places]]) -> None:
        """Take the ends of those who hold the slots; `later` is what is free without waiting for any."""
        self._job = job
        self._later = later
        self.starts_at = -inf
        for end, places in sorted(ends):
            if self._fits():
                break
            later.give(places)
            self.starts_at = end

    @property
    def possible(self) -> bool:
        """Whether it fits at all before those end who never do."""
        return self.starts_at < inf and self._fits()

    def part_of(self, free: FreeSlots) -> Places:
        """Return what of the job's slots is free already."""
        return common(best_fit(self._job, self._job.min_replicas, self._later) or (), free)

    def allows(self, job: JobView, places: Places, now: float) -> bool:
        """Whether a job may start there: it ends before the slots are needed, or leaves enough of them."""
        if latest_end(job, now) <= self.starts_at:
            return True
        self._later.take(places)
        if self._fits():
            return True
        self._later.give(places)
        return False

    def _fits(self) -> bool:
        return _room(self._job, self._later) >= self._job.min_replicas


def _room(job: JobView, free: FreeSlots) -> int:
    return free.replicas_that_fit(job.slots_per_replica, scatter=job.scatter)


def _server_ends(snapshot: Snapshot) -> Iterator[tuple[float, Places]]:
    """Yield when notebook servers give back their slots."""
    for server in snapshot.servers:
        until = inf if server.until is None else max(server.until, snapshot.now)
        yield until, ((server.node, server.slots),)
