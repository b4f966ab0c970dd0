"""The interfaces of policies and placements, and their inputs: the same in the job service and the simulator.

policy:    plan(snapshot) -> Plan. Which jobs should run now, in which order, with how many replicas.
placement: place(job, replicas, free, topology) -> slots on nodes, or None.

Both are functions of their arguments: they change none of them, read no clock and store nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from minicluster_hub.jobs.records import ServerRecord
from minicluster_hub.jobs.slot_numbers import total
from minicluster_hub.scheduling.allocation.free_slots import FreeSlots, Places, count_slots, replicas_in
from minicluster_hub.scheduling.old_names import also_has, also_made_with, also_read_as

NORMAL_PRIORITY = 50
HIGHEST_PRIORITY = 99
"""Of batch jobs."""
SERVING_PRIORITY = 100
"""Of the replicas of served models."""


def _fixed(job: JobView, now: float) -> bool:
    return job.runs and not job.is_preemptible(now)


@also_has(fixed=_fixed)
@also_read_as(
    chunks="replicas",
    chunk_slots="slots_per_replica",
    min_chunks="min_replicas",
    max_chunks="max_replicas",
    attained="consumed",
    attained_slot_s="consumed_slot_s",
    scatter="one_replica_per_node",
    steady_until="not_preemptible_until",
    goes_on="resumes_gang_id",
    settles="awaits_network",
    move_s="restart_cost_s",
    turn="submit_order",
)
@dataclass(frozen=True, slots=True)
class JobView:
    """A job that waits or runs. It asks for replicas: `slots_per_replica` slots on one node each, or half of
    one (0.5).

    one_replica_per_node: each replica is on a node of its own (`--nodes`); else a node may have several.
    places: the slots that the job has; () while it waits.
    since: when it began to wait, or got its present places (the fields below hold as of `since`).
    consumed_slot_s: slot-seconds that it consumed before.
    remaining_s: remaining work, in seconds on `min_replicas` replicas; None: unknown.
    time_limit_s: run time after which the service ends it, counted from its last start; None: no limit.
    not_preemptible_until: its places must not change before this moment; inf: as long as it runs.
    rates: (replicas, measured steps per second) of each number of replicas that it has had.
    gradient_bytes: bytes that its ranks exchange in a step; 0: unknown.
    image, shm_bytes: image and shared memory of its tasks.
    resumes_gang_id: a waiting job's gang, which lost a node; the rest of the gang is ready at once.
    awaits_network: that loss was a moment ago; tasks that joined the gang's network now would hang.
    starts_at_once: False while tasks of its last attempt are still ending.
    restart_cost_s: seconds without progress after a change of its places.
    only_shrinks: it has no snapshot: it may give up slots down to `min_replicas`, but cannot be moved or
        stopped.
    model_id: the served model that it is a replica of; 0: none, it is a batch job.
    """

    job_id: int
    owner: str
    submitted_at: float
    min_replicas: int
    max_replicas: int
    slots_per_replica: float = 1
    one_replica_per_node: bool = True
    group: str = ""
    priority: int = NORMAL_PRIORITY
    places: Places = ()
    since: float = 0.0
    consumed_slot_s: float = 0.0
    remaining_s: float | None = None
    time_limit_s: float | None = None
    not_preemptible_until: float = float("inf")
    rates: tuple[tuple[int, float], ...] = ()
    gradient_bytes: int = 0
    image: str | None = None
    shm_bytes: int | None = None
    resumes_gang_id: int | None = None
    awaits_network: bool = False
    starts_at_once: bool = True
    restart_cost_s: float = 30.0
    only_shrinks: bool = False
    model_id: int = 0

    @property
    def runs(self) -> bool:
        return bool(self.places)

    @property
    def replicas(self) -> int:
        """How many replicas it has now."""
        return replicas_in(self.places, self.slots_per_replica)

    @property
    def serves(self) -> bool:
        """Whether it is a replica of a served model."""
        return self.model_id > 0

    @property
    def submit_order(self) -> tuple[float, int]:
        """Sort key: earlier submissions first."""
        return self.submitted_at, self.job_id

    def is_preemptible(self, now: float) -> bool:
        """Whether it runs and its places may change; `only_shrinks` may still limit how."""
        return self.runs and now >= self.not_preemptible_until

    def waited_s(self, now: float) -> float:
        """Return for how long it has been waiting; 0 if it runs."""
        return 0.0 if self.runs else max(0.0, now - self.since)

    def consumed(self, now: float) -> float:
        """Return the slot-seconds that it has consumed by now."""
        return self.consumed_slot_s + count_slots(self.places) * max(0.0, now - self.since)

    def ends_by(self) -> float | None:
        """Return when its time limit ends it; None if it waits or has no limit."""
        return self.since + self.time_limit_s if self.runs and self.time_limit_s is not None else None


@also_read_as(chunks="replicas", chunk_slots="slots_per_replica")
@dataclass(frozen=True, slots=True)
class WarmGang:
    """A gang without a job. Its owner's next job starts on it quickly; for all others its slots are free."""

    gang_id: int
    owner: str
    places: Places
    slots_per_replica: float
    idle_since: float
    image: str | None = None
    shm_bytes: int | None = None

    @property
    def replicas(self) -> int:
        return replicas_in(self.places, self.slots_per_replica)

    def suits(self, job: JobView) -> bool:
        """Whether this job would start tasks like those of the gang. A replica of a model has a network of
        its own.
        """
        if job.serves:
            return False
        mine = (self.owner, self.slots_per_replica, self.image, self.shm_bytes)
        even = all(total(slots) == self.slots_per_replica for _, slots in self.places)
        return mine == (job.owner, job.slots_per_replica, job.image, job.shm_bytes) and (
            even or not job.one_replica_per_node
        )


@dataclass(frozen=True, slots=True)
class Topology:
    """slots: number of slots of each node that is up. link_bytes_s: speed of the link between two nodes.

    whole_only: nodes whose slots cannot be divided into halves.
    """

    slots: Mapping[str, int]
    link_bytes_s: float = 117e6
    whole_only: frozenset[str] = frozenset()

    def all_free(self) -> FreeSlots:
        """Return all slots of the nodes that are up."""
        return FreeSlots({node: range(count) for node, count in self.slots.items()}, self.whole_only)

    def has_room(self, node: str, slots_per_replica: float) -> bool:
        """Whether a replica fits on a node on which nothing runs."""
        if slots_per_replica < 1 and node in self.whole_only:
            return False
        return self.slots[node] >= slots_per_replica


@dataclass(frozen=True, slots=True)
class Usage:
    """An owner's past usage. slot_s: slot-seconds, decayed with a half-life. weight: in fair shares."""

    slot_s: float = 0.0
    weight: float = 1.0


@also_read_as(leaving="releasing", held_out="delayed_since")
@dataclass(frozen=True, slots=True)
class Snapshot:
    """All input of a decision.

    jobs: the waiting and the running ones, in the order of their submission.
    free: slots that no job and no server holds, including those of warm gangs.
    releasing: slots that are being released; a job planned on them starts when they are free.
    usage: by owner; an owner without an entry has no past usage and the weight 1.
    servers: the notebook servers that hold slots.
    growing: running jobs that may get more nodes without a restart when no job waits.
    delayed_since: by job, since when it waits for better slots although others are free (delay scheduling).
    waiting, running: the two parts of `jobs`.
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
        """Return a copy of the slots that are free now or in a moment."""
        free = self.free.copy()
        free.add(self.releasing.all())
        return free


@also_made_with(chunks="replicas")
@dataclass(frozen=True, slots=True)
class Grant:
    job_id: int
    replicas: int


@also_made_with(in_turn="head_blocks", kept="reserved")
@dataclass(frozen=True, slots=True)
class Plan:
    """The jobs that should run; they are placed in the order of `grants`.

    Running jobs without a grant may lose their slots to jobs with one.
    again_at: when the plan changes even if nothing happens; None: it does not.
    head_blocks: whether a job that cannot be placed blocks the jobs after it.
    reserved: free slots kept for a job that cannot start yet; others get them only if they fit nowhere else.
    """

    grants: tuple[Grant, ...]
    again_at: float | None = None
    head_blocks: bool = True
    reserved: Places = ()


class Policy(Protocol):
    """Decides which jobs should run.

    preemptive: whether it takes slots from running jobs, which then restart.
    elastic: whether it changes the number of replicas of running jobs. If the simulator only assumes the
        jobs' ranges, as for a trace, all other policies get each job with the size that it asked for.
    """

    @property
    def preemptive(self) -> bool: ...

    @property
    def elastic(self) -> bool: ...

    def plan(self, snapshot: Snapshot) -> Plan: ...


class Placement(Protocol):
    def place(self, job: JobView, replicas: int, free: FreeSlots, topology: Topology) -> Places | None:
        """Return places for that many replicas; None if there are none, or if they would slow the job."""
        ...


@runtime_checkable
class DelayScheduling(Placement, Protocol):
    """A placement that delays jobs: a gang waits for better places than it could have, or moves to them."""

    def max_delay_s(self, job: JobView, places: Places, topology: Topology) -> float:
        """Return how long a job should wait for better places before it starts on these; 0: not at all."""
        ...

    def better_places(
        self, job: JobView, places: Places, free: FreeSlots, topology: Topology, now: float
    ) -> Places | None:
        """Return places that are worth a restart of a running job; None if it should stay.

        places: its places by the plan. If they differ from `job.places`, it restarts in any case.
        free: the free slots, including `places`.
        """
        ...
