"""The service's records, as the store gives them out: frozen, without behaviour of their own.

Times are seconds since the epoch on the service's clock.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from minicluster.wire import BlobInfo, JobError, JobSpec, JobState, RankState


class TaskState(StrEnum):
    """NEW: has a row and leases. STARTED: the engine was told. READY: its agent can run ranks.
    ENDED: seen gone; its leases are free."""

    NEW = "new"
    STARTED = "started"
    READY = "ready"
    ENDED = "ended"


class GangTarget(StrEnum):
    """What should be: KEEP the tasks (bound to a job, or warm), or END them."""

    KEEP = "keep"
    END = "end"


@dataclass(frozen=True, slots=True)
class JobRecord:
    """`attempt_id` and `gang_id` are of the newest attempt; `world_size` too.

    losses: attempts in a row that ended with a lost task and got no further than the one before.
    """

    id: int
    owner: str
    spec: JobSpec
    state: JobState
    reason: str
    created_at: float
    started_at: float | None
    ended_at: float | None
    state_since: float
    attempts: int
    attempt_id: int | None
    gang_id: int | None
    world_size: int | None
    error: JobError | None
    result: BlobInfo | None
    losses: int = 0


@dataclass(frozen=True, slots=True)
class GangRecord:
    """All tasks of an attempt. `job_id` None: warm, waiting since `idle_since` for its owner.

    image, shm_bytes: what its tasks were started with (see wire.JobSpec).
    """

    id: int
    owner: str
    target: GangTarget
    job_id: int | None
    slots_per_node: int
    created_at: float
    idle_since: float | None
    image: str | None = None
    shm_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class TaskRecord:
    """One agent on one node. `cleared`: see wire.TaskReport."""

    id: int
    gang_id: int
    index: int
    node: str
    slots: tuple[int, ...]
    state: TaskState
    token_hash: str
    address: str
    store_port: int | None
    cleared: int
    failure: JobError | None
    state_since: float


@dataclass(frozen=True, slots=True)
class RankRecord:
    """`joined`: its task came while the attempt was running."""

    attempt_id: int
    rank: int
    task_id: int
    state: RankState
    exit_code: int | None
    error: JobError | None
    joined: bool = False


@dataclass(frozen=True, slots=True)
class Lease:
    """A slot of a node, held by a task or by a notebook server, whose id is given.

    The table's key is (node, slot): never held twice.
    """

    node: str
    slot: int
    task_id: int | None
    job_id: int | None
    owner: str
    warm: bool
    server_id: int | None = None


@dataclass(frozen=True, slots=True)
class ServerRecord:
    """A notebook server's place. `name` is "" for a user's unnamed server; `until` as in wire.ServerPlace."""

    id: int
    owner: str
    name: str
    node: str
    slots: tuple[int, ...]
    until: float | None
    created_at: float


@dataclass(frozen=True, slots=True)
class SnapshotRecord:
    """A complete snapshot of a job, kept in the job's storage; `parts` in their order."""

    job_id: int
    step: int
    attempt_id: int
    parts: tuple[BlobInfo, ...]
    created_at: float


@dataclass(frozen=True, slots=True)
class EventRecord:
    """A line of a job's story. `kind` is one word (submitted, admitted, running, ...)."""

    id: int
    job_id: int
    at: float
    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class NodeView:
    """A node as its engine sees it. `slot_kinds[i]` is "cpu" or "gpu"."""

    name: str
    up: bool
    address: str
    slot_kinds: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class World:
    """All that is not over, read in one transaction: what the reconciler decides from.

    snapshots: the complete ones of open jobs, by job and step.
    """

    jobs: tuple[JobRecord, ...]
    gangs: tuple[GangRecord, ...]
    tasks: tuple[TaskRecord, ...]
    ranks: tuple[RankRecord, ...]
    leases: tuple[Lease, ...]
    servers: tuple[ServerRecord, ...] = ()
    snapshots: tuple[SnapshotRecord, ...] = ()
