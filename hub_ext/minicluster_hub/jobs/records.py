"""The service's records, as the store returns them: frozen, without behaviour of their own.

Times are seconds since the epoch on the service's clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from minicluster.wire import BlobInfo, ImageState, JobError, JobSpec, JobState, RankState, Recipe


class TaskState(StrEnum):
    """NEW: has a row and leases. STARTED: the engine started it. READY: its agent can run ranks.
    ENDED: nothing of it runs; its leases are free."""

    NEW = "new"
    STARTED = "started"
    READY = "ready"
    ENDED = "ended"


class GangTarget(StrEnum):
    """The desired state of a gang: KEEP its tasks (bound to a job, or warm), or END them."""

    KEEP = "keep"
    END = "end"


@dataclass(frozen=True, slots=True)
class JobRecord:
    """`attempt_id`, `gang_id` and `world_size` are those of the newest attempt.

    lost_attempts: attempts in a row that ended with a lost task and got no further than the one before.
    data_attempt_id: the attempt for which the data sets are on all nodes.
    removed_at: when its blobs, snapshots and logs were removed.
    unreadable: why the stored spec cannot be read; `spec` is then a placeholder. "": it can be read.
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
    lost_attempts: int = 0
    data_attempt_id: int | None = None
    removed_at: float | None = None
    unreadable: str = ""


@dataclass(frozen=True, slots=True)
class GangRecord:
    """All tasks of an attempt. `job_id` None: the gang is warm and waits since `idle_since` for its owner.
    If that is None, it has had no job yet: it was prepared.

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

    @property
    def prepared(self) -> bool:
        """Whether it waits for its first job."""
        return self.job_id is None and self.idle_since is None


@dataclass(frozen=True, slots=True)
class TaskRecord:
    """One agent on one node. slots: numbers of whole slots, or of a half (see jobs.slot_numbers).

    cleaned_up_attempt_id: the newest attempt of which nothing is left here (`cleared` in wire.TaskReport).
    """

    id: int
    gang_id: int
    index: int
    node: str
    slots: tuple[int, ...]
    state: TaskState
    token_hash: str
    address: str
    store_port: int | None
    cleaned_up_attempt_id: int
    failure: JobError | None
    state_since: float


@dataclass(frozen=True, slots=True)
class RankRecord:
    """`joined`: its task was added while the attempt was running."""

    attempt_id: int
    rank: int
    task_id: int
    state: RankState
    exit_code: int | None
    error: JobError | None
    joined: bool = False


@dataclass(frozen=True, slots=True)
class Lease:
    """A slot of a node, or half of one, and its holder: a task or a notebook server.

    slot: its number, see jobs.slot_numbers. The table's key is a half's number: no half has two holders.
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
    """A notebook server's placement. `name` is "" for the unnamed server; `until`: see wire.ServerPlacement.

    created_at: when it was placed, or got GPUs again. gpus: the ids of the GPUs that it sees.
    warned_at: when its owner was warned that they are idle. reclaimed_at: when they were reclaimed; since
    then the server has no slots.
    """

    id: int
    owner: str
    name: str
    node: str
    slots: tuple[int, ...]
    until: float | None
    created_at: float
    gpus: tuple[str, ...] = ()
    warned_at: float | None = None
    reclaimed_at: float | None = None


@dataclass(frozen=True, slots=True)
class SnapshotRecord:
    """A complete snapshot of a job, in the job's storage. `parts` are in order."""

    job_id: int
    step: int
    attempt_id: int
    parts: tuple[BlobInfo, ...]
    created_at: float


@dataclass(frozen=True, slots=True)
class ImageRecord:
    """An image of the catalogue; see wire.Image. `recipe`: how it was made, if it was published here."""

    digest: str
    name: str
    reference: str
    owner: str
    description: str
    device: str
    size_bytes: int
    base_digest: str | None
    recipe: Recipe | None
    state: ImageState
    created_at: float
    changed_at: float


@dataclass(frozen=True, slots=True)
class DataSetRecord:
    """The newest version of an owner's data set."""

    owner: str
    name: str
    manifest_sha256: str
    files: int
    size_bytes: int
    shared: bool
    created_at: float


@dataclass(frozen=True, slots=True)
class DataSetVersion:
    """A version of a data set that a run read. read_at: when a run that reads it was last submitted."""

    owner: str
    name: str
    manifest_sha256: str
    files: int
    size_bytes: int
    read_at: float


@dataclass(frozen=True, slots=True)
class DataView:
    """How much of an attempt's data sets its nodes have. message: for the job's owner.

    moved_at: when a node last fetched more of them. trouble: why they cannot be fetched. lacking: the same
    by node, for nodes that will join the running attempt.
    """

    ready: bool
    message: str
    moved_at: float
    trouble: JobError | None = None
    lacking: Mapping[str, JobError] = field(default_factory=dict[str, JobError])


@dataclass(frozen=True, slots=True)
class EventRecord:
    """An event in a job's history. `kind` is one word (submitted, admitted, running, ...)."""

    id: int
    job_id: int
    at: float
    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class NodeView:
    """A node as its engine sees it. `slot_kinds[i]` is "cpu" or "gpu".

    closed: why it takes no new tasks; "": it takes new tasks. cpus, memory_bytes: of all slots together; 0:
    unknown. no_gpu_share: why its GPUs are not shared; "": each can be divided into halves.
    """

    name: str
    up: bool
    address: str
    slot_kinds: tuple[str, ...]
    closed: str = ""
    cpus: float = 0.0
    memory_bytes: int = 0
    no_gpu_share: str = "this cluster does not share GPUs"

    @property
    def open(self) -> bool:
        """Whether it takes new tasks."""
        return self.up and not self.closed


@dataclass(frozen=True, slots=True)
class ReservationRecord:
    """Slots that not everybody may use: a reservation, a maintenance window or a drained node.

    used_at: when a holder first used it. closed_at: when it was withdrawn, lapsed or ended.
    """

    id: int
    kind: str
    holder: str
    nodes: tuple[str, ...]
    slots: int | None
    begins_at: float
    ends_at: float | None
    note: str
    made_by: str
    made_at: float
    used_at: float | None = None
    closed_at: float | None = None
    closed_reason: str = ""


@dataclass(frozen=True, slots=True)
class StoredState:
    """Everything that is not over, read in one transaction: the input of the reconciler's decisions.

    snapshots: the complete ones of open jobs, by job and step.
    refused_images: references of images in which no job may start.
    """

    jobs: tuple[JobRecord, ...] = ()
    gangs: tuple[GangRecord, ...] = ()
    tasks: tuple[TaskRecord, ...] = ()
    ranks: tuple[RankRecord, ...] = ()
    leases: tuple[Lease, ...] = ()
    servers: tuple[ServerRecord, ...] = ()
    snapshots: tuple[SnapshotRecord, ...] = ()
    refused_images: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class UseRecord:
    """Slots that a task or a notebook server held from `began_at` to `ended_at`; None: still."""

    id: int
    owner: str
    job_id: int | None
    server_id: int | None
    task_id: int | None
    node: str
    slots: float
    gpus: float
    began_at: float
    ended_at: float | None

    @property
    def holder(self) -> tuple[int | None, int | None, int | None]:
        """The key of the holder. It is unique among those that hold slots at the same time."""
        return self.task_id, self.job_id, self.server_id


@dataclass(frozen=True, slots=True)
class TaskView:
    """A task as its engine sees it. `detail`: the last output of a task that ended by itself.

    starting: it is being started (its node pulls the image, say), so its agent cannot report yet.
    clean: nothing is left of it, no process and no container. A task whose agent died is neither
    alive nor clean until `Engine.end` has removed the rest.
    node_lost: it did not end by itself: its node failed or left.
    """

    task_id: int
    alive: bool
    starting: bool = False
    clean: bool = False
    exit_code: int | None = None
    detail: str = ""
    node_lost: bool = False


@dataclass(frozen=True, slots=True)
class LighthouseView:
    """The lighthouse of a gang with a fault-tolerant job. address: host:port, the same after a restart.

    alive: it runs, or is being started. detail: the last output of a lighthouse that ended.
    """

    gang_id: int
    address: str
    alive: bool
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Wait:
    """Why a job waits.

    position: in the queue, from 1; 0: another queue orders the jobs, and does not tell.
    expected_start_at: None if it is not known.
    """

    job_id: int
    position: int
    reason: str
    expected_start_at: float | None
