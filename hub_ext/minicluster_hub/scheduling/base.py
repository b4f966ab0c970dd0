"""The interfaces of scheduling and what they are told: the same in the job service and in the simulator.

policy:    plan(snapshot) -> Plan. Who should run now, in order, and with how many replicas.
placement: place(job, replicas, free, topology) -> which slots of which nodes, or None.

Neither may change what it is given, ask a clock, or keep anything from one call to the next.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from minicluster_hub.jobs.records import ServerRecord
from minicluster_hub.scheduling.allocation.free_slots import FreeSlots, Places, count_slots
from minicluster_hub.scheduling.old_names import also_made_with, also_read_as

NORMAL_PRIORITY = 50
HIGHEST_PRIORITY = 99


@also_read_as(
    chunks="replicas",
    chunk_slots="slots_per_replica",
    min_chunks="min_replicas",
    max_chunks="max_replicas",
    attained="consumed",
    attained_slot_s="consumed_slot_s",
)
@dataclass(frozen=True, slots=True)
class JobView:
    """A job that waits or runs. It asks for replicas: `slots_per_replica` slots on one node each.

    scatter: each replica on a node of its own (`--nodes`); else a node may have several of them.
    places: the slots that it has, () while it waits.
    since: when it began to wait, or got the places that it has; what follows was true then.
    consumed_slot_s: slot-seconds that it consumed before `since`.
    remaining_s: what is left to do, in seconds on `min_replicas` replicas; None: nobody knows.
    time_limit_s: run time after which it is ended, from its last start on; None: never.
    only_shrinks: it has no snapshot to go on from: it may lose places down to its minimum, not all or others.
    steady_until: before this moment its places must not change; inf: as long as it runs.
    rates: what it was seen to do, in steps per second, by replicas.
    gradient_bytes: what its ranks exchange in a step; 0: unknown.
    image, shm_bytes: what its tasks are started with.
    goes_on: the gang of an attempt that lost a node. What is left of it is ready at once.
    settles: that node fell silent a moment ago; who joins the gang's network now waits for it in vain.
    starts_at_once: False while something of its last attempt is still about.
    move_s: what a change of its places costs it, in seconds until it gets on again.
    """

    job_id: int
    owner: str
    submitted_at: float
    min_replicas: int
    max_replicas: int
    slots_per_replica: int = 1
    scatter: bool = True
    group: str = ""
    priority: int = NORMAL_PRIORITY
    places: Places = ()
    since: float = 0.0
    consumed_slot_s: float = 0.0
    remaining_s: float | None = None
    time_limit_s: float | None = None
    steady_until: float = float("inf")
    rates: tuple[tuple[int, float], ...] = ()
    gradient_bytes: int = 0
    image: str | None = None
    shm_bytes: int | None = None
    goes_on: int | None = None
    settles: bool = False
    starts_at_once: bool = True
    move_s: float = 30.0
    only_shrinks: bool = False

    @property
    def runs(self) -> bool:
        return bool(self.places)

    @property
    def replicas(self) -> int:
        """How many replicas it has."""
        return count_slots(self.places) // self.slots_per_replica

    @property
    def turn(self) -> tuple[float, int]:
        """Sorts jobs by their arrival."""
        return self.submitted_at, self.job_id

    def fixed(self, now: float) -> bool:
        """Whether it must keep exactly what it has."""
        return self.runs and now < self.steady_until

    def waited_s(self, now: float) -> float:
        """Return how long it has been waiting by now, 0 if it runs."""
        return 0.0 if self.runs else max(0.0, now - self.since)

    def consumed(self, now: float) -> float:
        """Return the slot-seconds that it has consumed."""
        return self.consumed_slot_s + count_slots(self.places) * max(0.0, now - self.since)

    def ends_by(self) -> float | None:
        """Return when its time limit ends it, None if it waits or has none."""
        return self.since + self.time_limit_s if self.runs and self.time_limit_s is not None else None


@also_read_as(chunks="replicas", chunk_slots="slots_per_replica")
@dataclass(frozen=True, slots=True)
class WarmGang:
    """A gang without a job: free slots to everybody, a quick start to its owner."""

    gang_id: int
    owner: str
    places: Places
    slots_per_replica: int
    idle_since: float
    image: str | None = None
    shm_bytes: int | None = None

    @property
    def replicas(self) -> int:
        return count_slots(self.places) // self.slots_per_replica

    def suits(self, job: JobView) -> bool:
        """Whether its tasks are what this job would start."""
        mine = (self.owner, self.slots_per_replica, self.image, self.shm_bytes)
        even = all(len(slots) == self.slots_per_replica for _, slots in self.places)
        return mine == (job.owner, job.slots_per_replica, job.image, job.shm_bytes) and (
            even or not job.scatter
        )


@dataclass(frozen=True, slots=True)
class Topology:
    """`slots`: of each node that is up. `link_bytes_s`: what two nodes were seen to send each other."""

    slots: Mapping[str, int]
    link_bytes_s: float = 117e6


@dataclass(frozen=True, slots=True)
class Usage:
    """What an owner has had: `slot_s` decays with a half-life, so that old use weighs less."""

    slot_s: float = 0.0
    weight: float = 1.0


@also_read_as(leaving="releasing", held_out="delayed_since")
@dataclass(frozen=True, slots=True)
class Snapshot:
    """All that a decision is made from.

    jobs: those that wait and those that run, in the order of their arrival.
    free: slots that no job and no server holds; those of the warm gangs are among them.
    releasing: slots that are being released; jobs that are planned on them start when they are free.
    usage: of each owner; an owner who is not in it has had nothing and weighs 1.
    servers: the notebook servers that hold slots.
    growing: running jobs that may take more nodes live when nobody waits.
    delayed_since: by job, since when it waits for better slots than it could have (delay scheduling).
    waiting, running: of the jobs; told apart once, since everybody asks.
    """

    now: float
    jobs: tuple[JobView, ...]
    free: FreeSlots
    topology: Topology
    warm: tuple[WarmGang, ...] = ()
    releasing: FreeSlots = field(default_factory=FreeSlots)
    servers: tuple[ServerRecord, ...] = ()
    usage: Mapping[str, Usage] = field(default_factory=dict[str, Usage])
    growing: frozenset[int] = frozenset()
    delayed_since: Mapping[int, float] = field(default_factory=dict[int, float])
    waiting: tuple[JobView, ...] = field(init=False, repr=False)
    running: tuple[JobView, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "waiting", tuple(job for job in self.jobs if not job.places))
        object.__setattr__(self, "running", tuple(job for job in self.jobs if job.places))

    def obtainable(self) -> FreeSlots:
        """Return the slots that are free now or in a moment; yours to change."""
        free = self.free.copy()
        free.give(self.releasing.all())
        return free


@also_made_with(chunks="replicas")
@dataclass(frozen=True, slots=True)
class Grant:
    job_id: int
    replicas: int


@dataclass(frozen=True, slots=True)
class Plan:
    """Who should run, first come first placed. Jobs without a grant lose their slots to those with one.

    again_at: when the plan would change though nothing happens, None if it would not.
    in_turn: whether one that finds no place holds up those after it.
    kept: free slots for one that cannot start yet; others are placed there only if they fit nowhere else.
    """

    grants: tuple[Grant, ...]
    again_at: float | None = None
    in_turn: bool = True
    kept: Places = ()


class Policy(Protocol):
    """Decides which jobs should run.

    moves_running: whether it takes slots from running jobs, which then restart.
    elastic: whether it changes the number of replicas of running jobs. Where a job's range is an
        assumption, as in a replay of old jobs, other policies get the size that the job asked for.
    """

    @property
    def moves_running(self) -> bool: ...

    @property
    def elastic(self) -> bool: ...

    def plan(self, snapshot: Snapshot) -> Plan: ...


class Placement(Protocol):
    def place(self, job: JobView, replicas: int, free: FreeSlots, topology: Topology) -> Places | None:
        """Return places for that many replicas, or None if they are not there, or of no use to it."""
        ...


@runtime_checkable
class ChoosyPlacement(Placement, Protocol):
    """One that knows when places are too bad: a gang waits for better ones, or moves to them."""

    def patience_s(self, job: JobView, places: Places, topology: Topology) -> float:
        """Return how long a job should rather wait for better places than start on these, 0: not at all."""
        ...

    def better(
        self, job: JobView, places: Places, free: FreeSlots, topology: Topology, now: float
    ) -> Places | None:
        """Return places that are worth a restart of a running job, None if it should stay.

        places: those that it would have now; where they are not `job.places`, it restarts anyway.
        free: what nobody else has, `places` among it.
        """
        ...
