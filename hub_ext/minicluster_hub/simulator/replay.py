"""Replays jobs under a policy and a placement: `assign` is the very function that the job service calls.

From event to event (arrival, end, slots given back, the moment that the plan names), without a clock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import inf

from minicluster_hub.jobs.records import ServerRecord
from minicluster_hub.scheduling.allocation.assign import assign
from minicluster_hub.scheduling.allocation.free_slots import FreeSlots, Places, count_slots
from minicluster_hub.scheduling.base import JobView, Placement, Policy, Snapshot, Topology, Usage
from minicluster_hub.scheduling.decayed_usage import Meter
from minicluster_hub.simulator.course import Course, Outcome
from minicluster_hub.simulator.model import Model
from minicluster_hub.simulator.work import Work


def go_on() -> None:
    """Take no rest."""


class SimulationStuck(Exception):
    """The policy never lets some jobs run, or asks to be asked again at once, for ever."""

    def __init__(self, why: str, now: float, jobs: Iterable[int]) -> None:
        listed = list(jobs)
        shown = ", ".join(str(job_id) for job_id in listed[:5])
        super().__init__(f"at {now:.0f} s: {why}; {len(listed)} jobs are left: {shown}")


@dataclass(frozen=True, slots=True)
class Replay:
    """What became of the jobs, in the order of their ends. `decisions`: how often the policy was asked."""

    outcomes: tuple[Outcome, ...]
    decisions: int


@dataclass(frozen=True, slots=True)
class SimulatedScheduler:
    """Who decides, and over what. `patience`: so many decisions per job show that a policy gets nowhere.

    rest: called after each decision, for whoever computes beside others.
    """

    topology: Topology
    policy: Policy
    placement: Placement
    model: Model = field(default_factory=Model)
    patience: int = 20_000
    rest: Callable[[], None] = go_on

    @property
    def keeps_s(self) -> float:
        """How long a job keeps what it gets: to its end under policies that move nobody."""
        return self.model.min_run_s if self.policy.moves_running else inf


@dataclass(frozen=True, slots=True)
class Start:
    """What there is before anything happens. `free`: is used up. `servers`: hold slots until their ends."""

    free: FreeSlots
    now: float = 0.0
    servers: tuple[ServerRecord, ...] = ()
    usage: Mapping[str, Usage] = field(default_factory=dict)


def simulate(works: Iterable[Work], scheduler: SimulatedScheduler) -> Replay:
    """Replay jobs, given in the order of their arrival, on an empty cluster. Raises SimulationStuck."""
    free = FreeSlots({node: range(count) for node, count in scheduler.topology.slots.items()})
    simulation = Simulation(scheduler, Start(free), works)
    outcomes = tuple(simulation.run())
    return Replay(outcomes, simulation.decisions)


class Simulation:
    """One replay. `courses`: of the jobs that are here, in the order of their arrival."""

    def __init__(self, scheduler: SimulatedScheduler, start: Start, works: Iterable[Work]) -> None:
        self.now = start.now
        self.decisions = 0
        self.courses: dict[int, Course] = {}
        self._rules = scheduler
        self._free = start.free
        self._node_slots = max(scheduler.topology.slots.values(), default=1)
        self._servers = deque(sorted(start.servers, key=_given_back))
        self._arriving = deque(works)
        self._views: dict[int, JobView] = {}
        self._running: dict[int, Course] = {}
        self._ends: list[tuple[float, int]] = []
        self._again_at = inf
        self._held_out: dict[int, float] = {}
        self._usage = Meter(scheduler.model.half_life_s, start.now, dict(start.usage))
        self._most_decisions = scheduler.patience * (1 + len(self._arriving))

    def run(self) -> Iterator[Outcome]:
        """Yield each job's outcome when it ends. Raises SimulationStuck."""
        while (ended := self.advance()) is not None:
            yield from ended

    def advance(self) -> list[Outcome] | None:
        """Go on to the next moment at which something happens; return who ended then, None after the last."""
        at = min(self._next_arrival(), self._next_end(), self._next_release(), self._again_at)
        if at == inf and self._views:
            raise SimulationStuck("nothing will happen any more", self.now, self._views)
        if at == inf:
            return None
        self.now = max(self.now, at)
        self._usage.read(self.now)
        ended = list(self._end_jobs())
        self._receive()
        self._again_at = inf
        if self._views:
            self._decide()
        return ended

    def _next_arrival(self) -> float:
        return self._arriving[0].view.since if self._arriving else inf

    def _next_end(self) -> float:
        """Return when the next job ends; entries of jobs that were moved since are dropped."""
        while self._ends:
            at, job_id = self._ends[0]
            course = self._running.get(job_id)
            if course is not None and course.ends_at == at:
                return at
            heappop(self._ends)
        return inf

    def _next_release(self) -> float:
        return _given_back(self._servers[0]) if self._servers else inf

    def _end_jobs(self) -> Iterator[Outcome]:
        while self._next_end() <= self.now:
            _, job_id = heappop(self._ends)
            course = self._running.pop(job_id)
            self._give_back(course)
            del self._views[job_id], self.courses[job_id]
            yield course.end()

    def _receive(self) -> None:
        """Take in the jobs that have come, and the slots that others have given back."""
        while self._next_release() <= self.now:
            server = self._servers.popleft()
            self._free.give(((server.node, server.slots),))
        while self._next_arrival() <= self.now:
            work = self._arriving.popleft()
            course = Course(work, self._rules.model.restart_s, self._rules.keeps_s, self._node_slots)
            self.courses[work.view.job_id] = course
            self._views[work.view.job_id] = work.view
            if work.view.runs:
                self._set_running(work.view.job_id, course)

    def snapshot(self) -> Snapshot:
        return Snapshot(
            self.now,
            tuple(self._views.values()),
            self._free,
            self._rules.topology,
            servers=tuple(self._servers),
            usage=self._usage.read(self.now),
            held_out=self._held_out,
        )

    def _decide(self) -> None:
        self.decisions += 1
        if self.decisions > self._most_decisions:
            raise SimulationStuck("the policy asks again and again", self.now, self._views)
        assignment = assign(self.snapshot(), self._rules.policy, self._rules.placement)
        self._again_at = inf if assignment.again_at is None else assignment.again_at
        self._held_out = assignment.held_out
        if self._again_at <= self.now:
            raise SimulationStuck("the plan is to be made again at once", self.now, self._views)
        self._apply(assignment.places)
        self._rules.rest()

    def _apply(self, wanted: dict[int, Places]) -> None:
        """Give back what jobs lose before others take it."""
        losing = [
            job_id
            for job_id, course in self._running.items()
            if _differ(wanted.get(job_id, ()), course.view.places)
        ]
        for job_id in losing:
            self._give_back(self._running.pop(job_id))
        for job_id in losing:
            if job_id not in wanted:
                self._move(job_id, ())
        for job_id, places in wanted.items():
            if job_id not in self._running:
                self._move(job_id, places)

    def _move(self, job_id: int, places: Places) -> None:
        course = self.courses[job_id]
        course.move(places, self.now)
        self._views[job_id] = course.view
        if places:
            self._free.take(places)
            self._set_running(job_id, course)

    def _set_running(self, job_id: int, course: Course) -> None:
        self._running[job_id] = course
        heappush(self._ends, (course.ends_at, job_id))
        self._usage.add(course.view.owner, count_slots(course.view.places))

    def _give_back(self, course: Course) -> None:
        self._free.give(course.view.places)
        self._usage.add(course.view.owner, -count_slots(course.view.places))


def _given_back(server: ServerRecord) -> float:
    return inf if server.until is None else server.until


def _differ(one: Places, other: Places) -> bool:
    return one is not other and set(one) != set(other)
