"""Replays jobs under a policy and a placement, with the function `assign` of the job service.

It goes from event to event, without a clock: arrivals, ends, released slots, the `again_at` of plans.
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
from minicluster_hub.simulator.model import Model
from minicluster_hub.simulator.simulated_job import Outcome, SimulatedJob
from minicluster_hub.simulator.workload import Work


def no_rest() -> None:
    """Do nothing between two decisions."""


class SimulationStuck(Exception):
    """The policy never runs some jobs, or endlessly requests to plan again at once."""

    def __init__(self, why: str, now: float, jobs: Iterable[int]) -> None:
        listed = list(jobs)
        shown = ", ".join(str(job_id) for job_id in listed[:5])
        super().__init__(f"at {now:.0f} s: {why}; {len(listed)} jobs are left: {shown}")


@dataclass(frozen=True, slots=True)
class Replay:
    """The outcomes in the order of their ends. decisions: how often the policy planned."""

    outcomes: tuple[Outcome, ...]
    decisions: int


@dataclass(frozen=True, slots=True)
class SimulatedScheduler:
    """The policy, placement and nodes of a simulation.

    patience: decisions per job after which the simulation counts as stuck.
    rest: called after each decision, so that other threads get the processor.
    """

    topology: Topology
    policy: Policy
    placement: Placement
    model: Model = field(default_factory=Model)
    patience: int = 20_000
    rest: Callable[[], None] = no_rest

    @property
    def keeps_s(self) -> float:
        """Seconds that a job keeps its slots; inf (to its end) under policies that move no job."""
        return self.model.min_run_s if self.policy.preemptive else inf


@dataclass(frozen=True, slots=True)
class InitialState:
    """The cluster before the first event. The simulation changes `free`."""

    free: FreeSlots
    now: float = 0.0
    servers: tuple[ServerRecord, ...] = ()
    usage: Mapping[str, Usage] = field(default_factory=dict[str, Usage])


def simulate(works: Iterable[Work], scheduler: SimulatedScheduler) -> Replay:
    """Replay jobs, given in the order of their arrival, on an empty cluster. Raises SimulationStuck."""
    simulation = Simulation(scheduler, works)
    outcomes = tuple(simulation.run())
    return Replay(outcomes, simulation.decisions)


class Simulation:
    """One replay, on an empty cluster unless there is a `start`.

    jobs: those that have arrived and not ended, in the order of their arrival.
    """

    def __init__(
        self, scheduler: SimulatedScheduler, works: Iterable[Work], start: InitialState | None = None
    ) -> None:
        start = start or InitialState(all_free(scheduler.topology))
        self.now = start.now
        self.decisions = 0
        self.jobs: dict[int, SimulatedJob] = {}
        self._scheduler = scheduler
        self._free = start.free
        self._node_slots = max(scheduler.topology.slots.values(), default=1)
        self._servers = deque(sorted(start.servers, key=_end_of))
        self._arriving = deque(works)
        self._views: dict[int, JobView] = {}
        self._running: dict[int, SimulatedJob] = {}
        self._ends: list[tuple[float, int]] = []
        self._again_at = inf
        self._delayed_since: dict[int, float] = {}
        self._usage = Meter(scheduler.model.half_life_s, start.now, dict(start.usage))
        self._most_decisions = scheduler.patience * (1 + len(self._arriving))

    def run(self) -> Iterator[Outcome]:
        """Yield the outcome of each job when it ends. Raises SimulationStuck."""
        while (ended := self.advance()) is not None:
            yield from ended

    def advance(self) -> list[Outcome] | None:
        """Go to the next event; return the jobs that ended with it, None after the last event."""
        at = min(self._next_arrival(), self._next_end(), self._next_release(), self._again_at)
        if at == inf and self._views:
            raise SimulationStuck("no event is left", self.now, self._views)
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
        """Return when the next job ends. Drop entries of jobs that were moved since."""
        while self._ends:
            at, job_id = self._ends[0]
            job = self._running.get(job_id)
            if job is not None and job.ends_at == at:
                return at
            heappop(self._ends)
        return inf

    def _next_release(self) -> float:
        return _end_of(self._servers[0]) if self._servers else inf

    def _end_jobs(self) -> Iterator[Outcome]:
        while self._next_end() <= self.now:
            _, job_id = heappop(self._ends)
            job = self._running.pop(job_id)
            self._release(job)
            del self._views[job_id], self.jobs[job_id]
            yield job.end()

    def _receive(self) -> None:
        """Add the jobs that have arrived, and free the slots of servers that have ended."""
        while self._next_release() <= self.now:
            server = self._servers.popleft()
            self._free.add(((server.node, server.slots),))
        while self._next_arrival() <= self.now:
            work = self._arriving.popleft()
            scheduler, job_id = self._scheduler, work.view.job_id
            job = SimulatedJob(work, scheduler.model.restart_s, scheduler.keeps_s, self._node_slots)
            self.jobs[job_id], self._views[job_id] = job, work.view
            if work.view.runs:
                self._set_running(job_id, job)

    def snapshot(self) -> Snapshot:
        return Snapshot(
            self.now,
            tuple(self._views.values()),
            self._free,
            self._scheduler.topology,
            servers=tuple(self._servers),
            usage=self._usage.read(self.now),
            delayed_since=self._delayed_since,
        )

    def _decide(self) -> None:
        self.decisions += 1
        if self.decisions > self._most_decisions:
            raise SimulationStuck("the policy plans again and again", self.now, self._views)
        assignment = assign(self.snapshot(), self._scheduler.policy, self._scheduler.placement)
        self._again_at = inf if assignment.again_at is None else assignment.again_at
        self._delayed_since = assignment.delayed_since
        if self._again_at <= self.now:
            raise SimulationStuck("the plan's again_at has passed already", self.now, self._views)
        self._apply(assignment.places)
        self._scheduler.rest()

    def _apply(self, wanted: dict[int, Places]) -> None:
        """Release the slots that jobs lose before others take them."""
        losing = [
            job_id
            for job_id, job in self._running.items()
            if _differ(wanted.get(job_id, ()), job.view.places)
        ]
        for job_id in losing:
            self._release(self._running.pop(job_id))
        for job_id in losing:
            if job_id not in wanted:
                self._move(job_id, ())
        for job_id, places in wanted.items():
            if job_id not in self._running:
                self._move(job_id, places)

    def _move(self, job_id: int, places: Places) -> None:
        job = self.jobs[job_id]
        job.move(places, self.now)
        self._views[job_id] = job.view
        if places:
            self._free.remove(places)
            self._set_running(job_id, job)

    def _set_running(self, job_id: int, job: SimulatedJob) -> None:
        self._running[job_id] = job
        heappush(self._ends, (job.ends_at, job_id))
        self._usage.add(job.view.owner, count_slots(job.view.places))

    def _release(self, job: SimulatedJob) -> None:
        self._free.add(job.view.places)
        self._usage.add(job.view.owner, -count_slots(job.view.places))


def all_free(topology: Topology) -> FreeSlots:
    return topology.all_free()


def _end_of(server: ServerRecord) -> float:
    return inf if server.until is None else server.until


def _differ(one: Places, other: Places) -> bool:
    return one is not other and set(one) != set(other)
