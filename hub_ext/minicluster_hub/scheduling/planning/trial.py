"""A policy tries its order: each job gets free slots, preempts other jobs, or waits with a reservation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from math import inf

from minicluster_hub.scheduling.allocation.allocation import Allocation, GangShape, Holder
from minicluster_hub.scheduling.allocation.filling import best_fit, fill
from minicluster_hub.scheduling.allocation.free_slots import FreeSlots, Places, common, joined, replicas_in
from minicluster_hub.scheduling.allocation.moves import make_room
from minicluster_hub.scheduling.base import Grant, JobView, Snapshot
from minicluster_hub.scheduling.planning.ageing import Ageing
from minicluster_hub.scheduling.planning.estimates import latest_end
from minicluster_hub.scheduling.planning.moments import movable

PreemptionClass = Callable[[JobView], float]
"""A job may preempt only jobs with a larger class number; smaller numbers are served first."""
_MOST_MOVED_FOR = 4
"""For at most this many gangs, one plan moves other jobs: each move is a restart."""


class Trial(Allocation):
    """An allocation by best fit. Only its sizes count: `assign` places the jobs by the active placement.

    preemptible: running jobs that may lose their slots, in the order of the policy; all others keep theirs.
    moved_for: waiting jobs that fit only because running jobs move out of their way.
    reservation: of the first job that does not fit and must not be delayed by the jobs after it.
    """

    def __init__(self, snapshot: Snapshot, preemptible: Sequence[JobView] = ()) -> None:
        super().__init__(snapshot.obtainable(), reversed(preemptible))
        self.snapshot = snapshot
        self.moved_for: set[int] = set()
        self.reservation: HeadReservation | None = None
        self._jobs = {job.job_id: job for job in snapshot.jobs}
        self._movable = {job.job_id for job in preemptible}
        self._never_moved_for: set[GangShape] = set()
        for job in snapshot.running:
            if job.job_id not in self._movable:
                self.places[job.job_id] = job.places

    @classmethod
    def of_all_movable(cls, snapshot: Snapshot) -> Trial:
        """Return a trial in which all movable running jobs have no slots and must be given some again."""
        trial = cls(snapshot, jobs := movable(snapshot))
        for job in jobs:
            trial.retain(job)
            trial.free.add(job.places)
        return trial

    def grants(self) -> tuple[Grant, ...]:
        return tuple(Grant(job_id, self.replicas(self._jobs[job_id])) for job_id in self.places)

    def replicas(self, job: JobView) -> int:
        """Return how many replicas a job has in this trial."""
        return replicas_in(self.places.get(job.job_id, ()), job.slots_per_replica)

    def left_waiting(self) -> list[JobView]:
        return [job for job in self.snapshot.waiting if job.job_id not in self.places]

    def head_blocks(self, ageing: Ageing) -> bool:
        """Whether a job that cannot be placed blocks those after it.

        Yes if jobs move for one of the jobs, or if an overdue one starts: later jobs could take its slots.
        """
        started = (job for job in self.snapshot.waiting if job.job_id in self.places)
        return bool(self.moved_for) or any(ageing.overdue(job, self.snapshot.now) for job in started)

    def reserved(self) -> Places:
        """Return the free slots that belong to the reservation."""
        return self.reservation.part_of(self.snapshot.obtainable()) if self.reservation else ()

    def keep(self, job: JobView) -> None:
        """Let a running job keep its slots, unless it was preempted."""
        if self.retain(job):
            self.places[job.job_id] = job.places

    def start(self, job: JobView, preemption_class: PreemptionClass | None = None) -> bool:
        """Give a waiting job as many free slots as it can use; else its minimum, by preempting the last jobs
        or by moving jobs. Return whether it got any.
        """
        most = min(job.max_replicas, _room(job, self.free))
        if most >= job.min_replicas:  # Then only the reservation can prevent its start.
            return any(self.seat(job, replicas) for replicas in dict.fromkeys((most, job.min_replicas)))

        def may_preempt(holder: Holder) -> bool:
            return preemption_class is None or (
                isinstance(holder, JobView) and preemption_class(holder) > preemption_class(job)
            )

        places = self.preempt(
            job, job.min_replicas, lambda free: best_fit(job, job.min_replicas, free), may_preempt
        )
        return self._assign_if_allowed(job, places) if places else self.move_for(job, preemption_class)

    def move_for(self, job: JobView, preemption_class: PreemptionClass | None = None) -> bool:
        """Give a waiting job its minimum by moving running jobs, if enough slots are free but scattered."""
        shape = GangShape(job.min_replicas, job.slots_per_replica, job.one_replica_per_node)
        enough = self.free.count >= job.min_replicas * job.slots_per_replica
        full = self.reservation or len(self.moved_for) >= _MOST_MOVED_FOR or shape in self._never_moved_for
        if job.runs or not enough or full:
            return False
        retained = [
            holder
            for holder in self.preemptible.values()
            if preemption_class
            and isinstance(holder, JobView)
            and preemption_class(holder) <= preemption_class(job)
        ]
        others = [(self._jobs[i], self.places[i]) for i in sorted(self._movable) if i in self.places]
        others += [(holder, holder.places) for holder in reversed(retained)]
        moves = make_room(job, job.min_replicas, others, self.free, best_fit)
        if moves is None:
            self._never_moved_for.add(shape)
            return False
        for holder in reversed(retained):
            self.keep(holder)
        self.move(moves)
        self.moved_for.add(job.job_id)
        return True

    def seat(self, job: JobView, replicas: int, nodes: Iterable[str] | None = None) -> bool:
        """Give a job that many replicas, on these nodes in this order, unless the reservation forbids it."""
        places = fill(
            job, replicas, self.free, self.free.nodes(job.slots_per_replica) if nodes is None else nodes
        )
        return places is not None and self._assign_if_allowed(job, places)

    def add_one(self, job: JobView, nodes: Iterable[str]) -> bool:
        """Give a job one more replica on the first of these nodes that has room."""
        more = fill(job, 1, self.free, nodes)
        if more is None:
            return False
        self.free.remove(more)
        self.places[job.job_id] = joined(self.places[job.job_id], more)
        return True

    def reserve(self, job: JobView, preemption_class: PreemptionClass | None = None) -> None:
        """Reserve slots for a job that did not fit, unless there is a reservation or it will never fit."""
        if self.reservation:
            return
        now, later = self.snapshot.now, self.free.copy()
        ends = [*_server_ends(self.snapshot), *self._ends_of_given()]
        for holder in self.preemptible.values():
            if (
                not isinstance(holder, JobView)
                or preemption_class is None
                or preemption_class(holder) > preemption_class(job)
            ):
                later.add(holder.places)
            else:
                ends.append((latest_end(holder, now), holder.places))
        reservation = HeadReservation(job, later, ends)
        if reservation.possible:
            self.reservation = reservation

    def _assign_if_allowed(self, job: JobView, places: Places) -> bool:
        reservation = None if job.runs else self.reservation
        if reservation and not reservation.allows(job, places, self.snapshot.now):
            return False
        self.assign(job.job_id, places)
        return True

    def _ends_of_given(self) -> Iterator[tuple[float, Places]]:
        now = self.snapshot.now
        for job_id, places in self.places.items():
            job = self._jobs[job_id]
            end = latest_end(job, now)
            yield min(end, job.not_preemptible_until) if not job.is_preemptible(now) else end, places


class HeadReservation:
    """The latest start of a job (`starts_at`), and the slots that are free then.

    Other jobs may start before it only if they do not delay it.
    """

    def __init__(self, job: JobView, later: FreeSlots, ends: Iterable[tuple[float, Places]]) -> None:
        """ends: when which slots are released. later: slots that the job could have without any of these."""
        self._job = job
        self._later = later
        self.starts_at = -inf
        for end, places in sorted(ends):
            if self._fits():
                break
            later.add(places)
            self.starts_at = end

    @property
    def possible(self) -> bool:
        """Whether the job fits once all holders with a known end have ended."""
        return self.starts_at < inf and self._fits()

    def part_of(self, free: FreeSlots) -> Places:
        """Return the slots for the job that are free already."""
        return common(best_fit(self._job, self._job.min_replicas, self._later) or (), free)

    def allows(self, job: JobView, places: Places, now: float) -> bool:
        """Whether a job may start there: it ends before the slots are needed, or enough others remain."""
        if latest_end(job, now) <= self.starts_at:
            return True
        self._later.remove(places)
        if self._fits():
            return True
        self._later.add(places)
        return False

    def _fits(self) -> bool:
        return _room(self._job, self._later) >= self._job.min_replicas


def _room(job: JobView, free: FreeSlots) -> int:
    return free.replicas_that_fit(job.slots_per_replica, one_replica_per_node=job.one_replica_per_node)


def _server_ends(snapshot: Snapshot) -> Iterator[tuple[float, Places]]:
    """Yield when notebook servers release their slots."""
    for server in snapshot.servers:
        until = inf if server.until is None else max(server.until, snapshot.now)
        yield until, ((server.node, server.slots),)
