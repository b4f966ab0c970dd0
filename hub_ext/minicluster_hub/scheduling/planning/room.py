"""The slots while a plan is made: who was given how many, who may lose theirs, and for whom some are kept."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from math import inf

from minicluster_hub.scheduling.allocation.free_slots import FreeSlots, Places, common, count_slots
from minicluster_hub.scheduling.base import Grant, JobView, Snapshot
from minicluster_hub.scheduling.placement.filling import fill
from minicluster_hub.scheduling.planning.ageing import Ageing
from minicluster_hub.scheduling.planning.estimates import latest_end
from minicluster_hub.scheduling.planning.filling import most
from minicluster_hub.scheduling.planning.moments import movable

Gang = tuple[int, int, bool]
"""Chunks, slots of each, and whether each is on a node of its own: what fits or does not."""
_MOST_SQUEEZED = 4
"""For so many gangs others are moved in one plan: each move is a restart."""
Level = Callable[[JobView], float]
"""A job takes slots only from jobs of a higher level; those of a lower level are served first."""
Holders = Mapping[int, tuple[JobView, Places]]
"""By their number: jobs, and the places that they would have."""


@dataclass
class Room:
    """A plan in the making. Its places are only a trial: the placement decides.

    yielding: running jobs without a grant yet, the first to lose their slots last.
    given: places of those with a grant, in the order in which they got it.
    squeezed: those that fit only if running jobs move out of their way.
    _hopeless: gangs that found no room, whoever yields; as more is given away they never will.
    _unsqueezed: gangs that found none, whoever moves.
    """

    snapshot: Snapshot
    free: FreeSlots
    yielding: dict[int, JobView]
    given: dict[int, Places] = field(default_factory=dict)
    squeezed: set[int] = field(default_factory=set)
    reservation: Reservation | None = None
    _may_move: frozenset[int] = frozenset()
    _jobs: dict[int, JobView] = field(default_factory=dict)
    _yielding_slots: int = 0
    _hopeless: set[Gang] = field(default_factory=set)
    _unsqueezed: set[Gang] = field(default_factory=set)

    @classmethod
    def of(cls, snapshot: Snapshot, yielding: Iterable[JobView]) -> Room:
        """Return the room where these may lose their slots, and all others that run keep theirs."""
        may_lose = {job.job_id: job for job in yielding}
        room = cls(snapshot, snapshot.obtainable(), may_lose, _may_move=frozenset(may_lose))
        room._yielding_slots = sum(count_slots(job.places) for job in may_lose.values())
        for job in snapshot.running:
            if job.job_id not in may_lose:
                room._give(job, job.places)
        return room

    @classmethod
    def contested(cls, snapshot: Snapshot) -> Room:
        """Return the room where all is free but what those have that may not be moved."""
        room = cls.of(snapshot, yielding := movable(snapshot))
        for job in yielding:
            room.free.give(job.places)
        room.yielding, room._yielding_slots = {}, 0
        return room

    def grants(self) -> tuple[Grant, ...]:
        return tuple(Grant(job_id, self.chunks(self._jobs[job_id])) for job_id in self.given)

    def in_turn(self, ageing: Ageing) -> bool:
        """Whether nobody may overtake one without a place: an overdue one, or one that others move for."""
        started = (job for job in self.snapshot.waiting if job.job_id in self.given)
        return bool(self.squeezed) or any(ageing.overdue(job, self.snapshot.now) for job in started)

    def kept(self) -> Places:
        """Return the free slots for whom there is a reservation."""
        return self.reservation.kept(self.snapshot.obtainable()) if self.reservation else ()

    def keep(self, job: JobView) -> None:
        """Let a running job have what it has, unless it has lost it."""
        if self.yielding.pop(job.job_id, None) is not None:
            self._yielding_slots -= count_slots(job.places)
            self._give(job, job.places)

    def start(self, job: JobView, level: Level | None = None) -> bool:
        """Give a waiting job the most that is free; failing that, its minimum: taken from the last, or found
        by moving others.
        """
        for chunks in dict.fromkeys((most(job, self.free), job.min_chunks)):
            if chunks and self.seat(job, chunks):
                return True
        lost = self._make_room(job, level)
        if lost and not self.seat(job, job.min_chunks):
            self._take_back(lost)
            return False
        return bool(lost) or self.squeeze(job, level)

    def squeeze(self, job: JobView, level: Level | None = None) -> bool:
        """Give a waiting job its minimum where enough slots are free, but not together: others move."""
        enough = self.free.count >= job.min_chunks * job.chunk_slots
        full = self.reservation or len(self.squeezed) >= _MOST_SQUEEZED or _gang(job) in self._unsqueezed
        if job.runs or not enough or full:
            return False
        others = {i: (self._jobs[i], self.given[i]) for i in sorted(self._may_move) if i in self.given}
        if level is not None:
            others |= {v.job_id: (v, v.places) for v in self.yielding.values() if level(v) <= level(job)}
        found = repack(job, others, self.free) if others else {}
        if not found:
            self._unsqueezed.add(_gang(job))
            return False
        for other, _ in others.values():
            self.keep(other)
        self._jobs[job.job_id] = job
        self.given |= found
        self.squeezed.add(job.job_id)
        return True

    def seat(self, job: JobView, chunks: int, nodes: Iterable[str] | None = None) -> bool:
        """Give a job so many chunks, on these nodes in this order; a reservation may forbid a start."""
        places = fill(job, chunks, self.free, self.free.nodes(job.chunk_slots) if nodes is None else nodes)
        if places is None:
            return False
        kept = self.reservation if not job.runs else None
        if kept and not kept.allows(job, places, self.snapshot.now):
            return False
        self.free.take(places)
        self._give(job, places)
        return True

    def chunks(self, job: JobView) -> int:
        """Return how many chunks a job was given."""
        return count_slots(self.given.get(job.job_id, ())) // job.chunk_slots

    def add(self, job: JobView, nodes: Iterable[str]) -> bool:
        """Give a job one more chunk, on the first of these nodes that has room."""
        more = fill(job, 1, self.free, nodes)
        if more is None:
            return False
        self.free.take(more)
        (node, slots) = more[0]
        given = dict(self.given[job.job_id])
        given[node] = (*given.get(node, ()), *slots)
        self.given[job.job_id] = tuple(given.items())
        return True

    def reserve(self, job: JobView, level: Level | None = None) -> None:
        """Keep slots for a job that did not fit, the first of all; not for one that never will."""
        if self.reservation:
            return
        later = self.free.copy()
        ends = [*server_ends(self.snapshot), *self._ends_of_given()]
        for holder in self.yielding.values():
            if level is None or level(holder) > level(job):
                later.give(holder.places)
            else:
                ends.append((latest_end(holder, self.snapshot.now), holder.places))
        reservation = Reservation(job, later, ends)
        if reservation.possible:
            self.reservation = reservation

    def _ends_of_given(self) -> Iterator[tuple[float, Places]]:
        now = self.snapshot.now
        for job_id, places in self.given.items():
            job = self._jobs[job_id]
            end = latest_end(job, now)
            yield min(end, job.steady_until) if job.fixed(now) else end, places

    def _make_room(self, job: JobView, level: Level | None) -> list[JobView]:
        """Free the slots of as few as are needed, from the last on; of none if all are not enough."""
        most_slots = self.free.count + self._yielding_slots
        if most_slots < job.min_chunks * job.chunk_slots or _gang(job) in self._hopeless:
            return []
        asked = self._asked(job, level)
        if not asked:
            self._hopeless.add(_gang(job))
        for victim in asked:
            self.free.give(victim.places)
        return self._spare(job, asked)

    def _asked(self, job: JobView, level: Level | None) -> list[JobView]:
        """Return the last of those who yield to a job, on the nodes where that makes room for it."""
        missing = job.min_chunks - self.free.most_chunks(job.chunk_slots, scatter=job.scatter)
        asked: list[JobView] = []
        left: dict[str, int] = {}
        opened: set[str] = set()
        for victim in reversed(self.yielding.values()):
            if level is not None and level(victim) <= level(job):
                continue
            asked.append(victim)
            for node, slots in victim.places:
                before = left.setdefault(node, len(self.free.on(node)))
                left[node] += len(slots)
                more = _chunks(job, left[node]) - _chunks(job, before)
                missing -= more
                if more:
                    opened.add(node)
            if missing <= 0:
                return [one for one in asked if any(node in opened for node, _ in one.places)]
        return []

    def _spare(self, job: JobView, asked: list[JobView]) -> list[JobView]:
        """Return who has to lose their slots; the others get them back, the best of them first."""
        lost: list[JobView] = []
        for victim in reversed(asked):
            self.free.take(victim.places)
            if not self._fits(job):
                self.free.give(victim.places)
                lost.append(victim)
        for victim in lost:
            del self.yielding[victim.job_id]
            self._yielding_slots -= count_slots(victim.places)
        return lost

    def _take_back(self, lost: list[JobView]) -> None:
        for victim in lost:
            self.free.take(victim.places)
            self.yielding[victim.job_id] = victim
            self._yielding_slots += count_slots(victim.places)

    def _fits(self, job: JobView) -> bool:
        return self.free.most_chunks(job.chunk_slots, scatter=job.scatter) >= job.min_chunks

    def _give(self, job: JobView, places: Places) -> None:
        self._jobs[job.job_id] = job
        self.given[job.job_id] = places


def _gang(job: JobView) -> Gang:
    return job.min_chunks, job.chunk_slots, job.scatter


def _chunks(job: JobView, slots: int) -> int:
    """Return how many chunks of a job go on a node with so many free slots."""
    chunks = slots // job.chunk_slots
    return min(1, chunks) if job.scatter else chunks


# Whether a gang would fit if running jobs stood elsewhere: the question only, `assign` does the moving.


def repack(gang: JobView, others: Holders, free: FreeSlots) -> dict[int, Places]:
    """Return places for a gang's minimum and for all the others, taken from `free`.

    Empty, and nothing taken, if somebody finds none, or none on as few nodes as before.
    """
    trial = free.copy()
    _give(trial, (places for _, places in others.values()))
    own = fill(gang, gang.min_chunks, trial, trial.nodes(gang.chunk_slots))
    if own is None:
        return {}
    trial.take(own)
    found = _places_of_all(others, trial)
    if len(found) < len(others):
        return {}
    found[gang.job_id] = own
    _give(free, (places for _, places in others.values()))
    for places in found.values():
        free.take(places)
    return found


def _places_of_all(others: Holders, trial: FreeSlots) -> dict[int, Places]:
    """Leave those where they are who can stay, and find places for the rest, the largest first."""
    found: dict[int, Places] = {}
    for job_id, (_, places) in others.items():
        if trial.has(places):
            found[job_id] = places
            trial.take(places)
    homeless = (item for item in others.items() if item[0] not in found)
    for job_id, (job, places) in sorted(homeless, key=lambda item: -count_slots(item[1][1])):
        chunks = count_slots(places) // job.chunk_slots
        elsewhere = fill(job, chunks, trial, trial.nodes(job.chunk_slots))
        if elsewhere is None or len(elsewhere) > len(places):
            break
        found[job_id] = elsewhere
        trial.take(elsewhere)
    return found


def _give(free: FreeSlots, all_places: Iterable[Places]) -> None:
    for places in all_places:
        free.give(places)


# Slots kept for a job that does not fit yet: others may start before it only if they do not delay it.


class Reservation:
    """When a job will fit at the latest (`starts_at`), and what is free then (`later`)."""

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

    def kept(self, free: FreeSlots) -> Places:
        """Return what of the job's slots is free already."""
        job = self._job
        places = fill(job, job.min_chunks, self._later, self._later.nodes(job.chunk_slots))
        return common(places or (), free)

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
        job = self._job
        return self._later.most_chunks(job.chunk_slots, scatter=job.scatter) >= job.min_chunks


def server_ends(snapshot: Snapshot) -> Iterator[tuple[float, Places]]:
    """Yield when notebook servers give back their slots."""
    for server in snapshot.servers:
        until = inf if server.until is None else max(server.until, snapshot.now)
        yield until, ((server.node, server.slots),)
