"""Jobs, blobs and nodes: messages between notebooks or pages and the service."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from minicluster.wire.base import MOST, Count, EnvName, Message, Sha256
from minicluster.wire.comm import comm_method, not_fault_tolerant
from minicluster.wire.limits import (
    PARTS_OF_JOB,
    ErrorText,
    Name,
    NodeText,
    Sentence,
    Traceback,
    VersionText,
    cut,
    first,
)
from minicluster.wire.serving.replicas import ReplicaOf
from minicluster.wire.stacks import RankStack
from minicluster.wire.sweeps.trials import TrialRef
from minicluster.wire.training.framework import Framework

SOURCE_CHARS = 256 << 10
LINE_CHARS = 4096
SENT_NAMES = 500
DIFFERING_PACKAGES = 200
TAGS = 20
GPU_SHARE = 0.5
"""The share of a GPU that a job or a notebook server may ask for."""

Tag = Annotated[str, Field(pattern=r"^[^\s,\x00-\x1f][^,\x00-\x1f]{0,63}$")]


class JobState(StrEnum):
    QUEUED = "queued"
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    FAILING = "failing"
    REQUEUING = "requeuing"
    YIELDING = "yielding"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    STOPPED = "stopped"

    @property
    def terminal(self) -> bool:
        return self in (JobState.SUCCEEDED, JobState.FAILED, JobState.STOPPED)


class ErrorKind(StrEnum):
    """Why an attempt failed; the text for people is in `JobError.message`."""

    EXCEPTION = "exception"
    EXIT = "exit"
    SIGNAL = "signal"
    MEMORY = "memory"
    DISK = "disk"
    START = "start"
    LOST = "lost"
    TIMEOUT = "timeout"


class JobError(Message):
    """The first cause of a failure.

    `message` is one sentence; `traceback` is that of the rank that failed first, with the cell's own line
    numbers; `at` is when it happened, in seconds since the epoch on the rank's node; `stack` is
    where the rank was then, for the service.
    """

    kind: ErrorKind
    message: ErrorText
    rank: Count | None = None
    node: NodeText | None = None
    traceback: Traceback = ""
    hint: Sentence = ""
    exit_code: int | None = Field(default=None, ge=-MOST, le=MOST)
    at: float | None = None
    stack: RankStack | None = None


class CountRange(Message):
    """How many nodes or slots a job takes: at least `min`, at most `max`."""

    min: int = Field(ge=1, le=10_000)
    max: int = Field(ge=1, le=10_000)

    @model_validator(mode="after")
    def _ordered(self) -> CountRange:
        if self.min > self.max:
            raise ValueError(f"{self.min}:{self.max}: the minimum is above the maximum")
        return self


class DataUse(Message):
    """A data set that a job reads. name: as written in the cell's line, NAME or OWNER/NAME.

    manifest_sha256: its version; at submission the beginning of one, or "" for the newest. The service sets
    this and the other fields: a later push does not affect the job.
    """

    name: str = Field(pattern=r"^([^/\s\x00]{1,255}/)?[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")
    owner: Name = ""
    manifest_sha256: str = Field(default="", max_length=64)
    size_bytes: Count = 0
    files: Count = 0


class NotebookCell(Message):
    """The cell that a job was submitted from, so that a page can find the cell's job again.

    notebook: its path as the kernel was told it when it started, relative to the server's folder or absolute;
        a notebook that was renamed since has another. kernel: its id, by which the server knows better.
    """

    cell: str = Field(default="", max_length=256)
    notebook: str = Field(default="", max_length=4096)
    kernel: str = Field(default="", max_length=128)


class SentName(Message):
    """A name that was sent with a cell.

    size_bytes: of its pickle; None: it was not measured, or was sent as part of another name.
    """

    name: Name
    type: Name = ""
    size_bytes: Count | None = None


class GitCommit(Message):
    """The commit of the notebook's folder. changed: files that differ from it, None if that is not known."""

    commit: Annotated[str, Field(max_length=64)]
    branch: Name = ""
    changed: Count | None = None


class RunOrigin(Message):
    """What a notebook says of a cell when it submits it, so that the run can be understood and repeated.

    source: the cell's text without its `%%distribute` line. line: that line's options.
    script: the path of the script, if it was `%distribute run`; source is then its text, and line ends with
        the script and its arguments.
    packages: versions here of packages that differ from the image's or that it lacks; "" if they are equal.
    rerun_of: the job that this one repeats.
    """

    source: Annotated[str, cut(SOURCE_CHARS), Field(max_length=SOURCE_CHARS)] = ""
    line: Annotated[str, cut(LINE_CHARS), Field(max_length=LINE_CHARS)] = ""
    script: Annotated[str, Field(max_length=LINE_CHARS)] = ""
    names: Annotated[tuple[SentName, ...], Field(max_length=SENT_NAMES), first(SENT_NAMES)] = ()
    packages: Annotated[dict[Name, VersionText], Field(max_length=DIFFERING_PACKAGES)] = Field(
        default_factory=dict
    )
    commit: GitCommit | None = None
    tags: tuple[Tag, ...] = Field(default=(), max_length=TAGS)
    rerun_of: Count | None = None


class JobSpec(Message):
    """What a cell asks for.

    nodes: None means all nodes that the cluster has.
    slots_per_node: schedulable units (GPUs, or CPU shares) leased on each node.
    gpu_share: 0.5: half a GPU on each node in place of whole slots, with one rank; None: whole slots.
    ranks_per_node: training processes on each node; None means one per slot.
    slots: instead of these three: the number of slots, on any nodes, with one rank for each.
    payload_sha256: the cell with its names, a blob that the service never opens.
    timeout_s: run time after which the job is ended as failed; None means the cluster's limit.
    image: the container image that its tasks run; None means the cluster's own.
    shm_bytes: size of /dev/shm in each task, for data loaders; None means the engine's default.
    quiet_after_s: the stall timeout: time without progress of a rank after which the owner is told why;
        0: never; None means the cluster's own.
    priority: jobs of a higher one go first if the active policy uses priorities.
    fault_tolerant: its ranks go on when a node is lost, and new ones join them live.
    bundle_sha256: the blob with the files from the notebook's folder, for the ranks' working folder.
    data: the data sets that its ranks read.
    origin: the notebook's cell that it was submitted from; None if it is not known.
    parts: blobs with the large parts of the payload, see minicluster.pickling.parts.
    seed: what the ranks' random number generators start from; None: each run has one of its own.
    comm: how its ranks exchange gradients (minicluster.wire.comm); None: as the cell's own code does.
    balance: faster ranks take more samples of each step.
    trial: which trial of a sweep it is; only the service sets it.
    session: its ranks stay after the cell, and run those that come (minicluster.wire.sessions).
    framework: the library that trains in its ranks; None: torch.
    serve: of which served model its rank is a replica; only the service sets it.
    """

    name: str = Field(default="cell", min_length=1, max_length=100)
    payload_sha256: Sha256
    nodes: CountRange | None = None
    slots_per_node: int = Field(default=1, ge=1, le=64)
    ranks_per_node: int | None = Field(default=None, ge=1, le=256)
    slots: CountRange | None = None
    env: dict[EnvName, str] = Field(default_factory=dict)
    timeout_s: float | None = Field(default=None, gt=0)
    image: str | None = Field(default=None, min_length=1, max_length=512)
    shm_bytes: int | None = Field(default=None, ge=1 << 20, le=1 << 44)
    quiet_after_s: float | None = Field(default=None, ge=0)
    fault_tolerant: bool = False
    priority: int = Field(default=50, ge=1, le=99)
    bundle_sha256: Sha256 | None = None
    data: tuple[DataUse, ...] = Field(default=(), max_length=32)
    origin: NotebookCell | None = None
    parts: tuple[Sha256, ...] = Field(default=(), max_length=PARTS_OF_JOB)
    seed: int | None = Field(default=None, ge=0, lt=1 << 32)
    comm: str | None = Field(default=None, max_length=200)
    balance: bool = False
    trial: TrialRef | None = None
    session: bool = False
    serve: ReplicaOf | None = None
    gpu_share: float | None = None
    framework: Framework | None = None

    @field_validator("gpu_share")
    @classmethod
    def _share_is_a_half(cls, share: float | None) -> float | None:
        if share not in (None, GPU_SHARE):
            raise ValueError(f"a GPU is shared by halves: {GPU_SHARE}")
        return share

    @field_validator("comm")
    @classmethod
    def _comm_exists(cls, text: str | None) -> str | None:
        return text if text is None else str(comm_method(text))

    @property
    def blobs(self) -> frozenset[str]:
        """All blobs that the job uses."""
        trained = self.serve.trained_by.blobs if self.serve and self.serve.trained_by else ()
        return frozenset(filter(None, (self.payload_sha256, self.bundle_sha256, *self.parts, *trained)))

    @model_validator(mode="after")
    def _one_shape(self) -> JobSpec:
        if self.slots and (self.nodes or self.ranks_per_node or self.slots_per_node != 1):
            raise ValueError(
                "slots are wherever they are: leave out nodes, slots_per_node and ranks_per_node"
            )
        if self.gpu_share and (self.slots or self.slots_per_node != 1 or self.ranks_on_each_node != 1):
            raise ValueError("half a GPU on each node is for one rank: leave out slots and further ranks")
        if self.gpu_share and self.shm_bytes:
            raise ValueError("those who share a GPU share /dev/shm, too: leave out shm_bytes")
        if self.session and self.fault_tolerant:
            raise ValueError("the ranks of a session are always the same: fault_tolerant ranks come and go")
        of_torch = self.fault_tolerant or self.comm or self.balance
        if of_torch and self.framework not in (None, Framework.TORCH):
            raise ValueError(f"fault_tolerant, comm and balance are for torch, not for {self.framework}")
        if self.fault_tolerant and self.comm and (why := not_fault_tolerant(comm_method(self.comm))):
            raise ValueError(why)
        if self.slots and self.fault_tolerant:
            raise ValueError("a fault-tolerant job loses and gets whole nodes: ask for nodes, not for slots")
        self._check_replica()
        return self

    def _check_replica(self) -> None:
        """A replica of a model has one rank, on one node."""
        if self.serve is None:
            return
        if self.slots or self.nodes is None or self.nodes.max > 1 or self.ranks_per_node != 1:
            raise ValueError("a replica of a model is one rank on one node: nodes 1, ranks_per_node 1")
        if self.session or self.fault_tolerant or self.trial:
            raise ValueError("a replica of a model is no session, no trial, and not fault_tolerant")

    @property
    def ranks_on_each_node(self) -> int:
        return self.ranks_per_node or self.slots_per_node

    @property
    def slots_per_replica(self) -> float:
        """How many slots of one node each replica takes: whole ones, or a share of one."""
        return self.gpu_share or self.slots_per_node

    @property
    def replicas(self) -> CountRange | None:
        """How many pieces of `slots_per_node` slots it takes: nodes, or single slots."""
        return self.slots or self.nodes

    def ranks_on(self, slots: int) -> int:
        """Return how many ranks it has on a node where it has so many slots."""
        return slots if self.slots else self.ranks_on_each_node


class JobSubmit(Message):
    """POST api/jobs. The same key from the same owner is the same job, however often it is sent.

    run: what to remember of it besides the request itself; None if it was not submitted by a notebook.
    """

    idempotency_key: str = Field(min_length=8, max_length=64)
    spec: JobSpec
    run: RunOrigin | None = None


class GangToPrepare(Message):
    """POST api/gangs: start a gang on free slots, for the first cell of a notebook that was opened.

    image: as in JobSpec.
    """

    image: str | None = Field(default=None, min_length=1, max_length=512)


class PreparedGang(Message):
    """nodes: those on which the gang starts; none if slots are not free, or if it is not wanted."""

    nodes: tuple[str, ...]


class BlobInfo(Message):
    sha256: Sha256
    size_bytes: Count


class MissingBlobs(Message):
    """POST api/missing-blobs; the answer has the same form and lists the blobs to be sent."""

    sha256: tuple[Sha256, ...] = Field(max_length=PARTS_OF_JOB)


class Job(Message):
    """A job as its owner sees it. Times are seconds since the epoch on the service's clock.

    note: what its owner should know while it runs (a rank makes no progress, say), and after its end
        (files that went with the ranks, say).
    cell_number: the number of the session's cell that this is about, shown like a job; 0: the job itself.
    """

    id: int
    owner: str
    name: str
    state: JobState
    reason: str = ""
    created_at: float
    started_at: float | None = None
    ended_at: float | None = None
    attempt: int = 0
    world_size: int | None = None
    nodes: tuple[str, ...] = ()
    error: JobError | None = None
    result: BlobInfo | None = None
    queue_position: int | None = None
    expected_start_at: float | None = None
    note: str = ""
    origin: NotebookCell | None = None
    cell_number: Count = 0


class JobList(Message):
    jobs: tuple[Job, ...]


class SlotUse(Message):
    """One slot of a node and who holds it (None: free). `warm`: held by an idle, warm gang.

    share: 0.5 for half a slot; a GPU that is shared is listed once for each half.
    server: the name of the notebook server that holds it ("" is the unnamed one), None if none does.
    until: when that server has to release it, in seconds since the epoch.
    idle_since: since when that server has not used it, once its owner was notified. reclaim_at: when others
        may get it, None: never. held_bytes: its memory in use, so much that no other job can use it.
    """

    slot: int
    share: float = 1
    kind: Literal["cpu", "gpu"] = "cpu"
    job_id: int | None = None
    owner: str | None = None
    warm: bool = False
    server: str | None = None
    until: float | None = None
    idle_since: float | None = None
    reclaim_at: float | None = None
    held_bytes: int = 0


class Node(Message):
    """closed: why a node that is up takes no new jobs (drained, or in maintenance); "": it takes jobs."""

    name: str
    up: bool
    slots: tuple[SlotUse, ...]
    closed: str = ""


class NodeList(Message):
    nodes: tuple[Node, ...]


# Why a job is stuck.


class JobWhy(Message):
    """GET api/jobs/ID/why: one sentence, and where each rank is while the job runs."""

    job_id: int
    state: JobState
    sentence: str
    hint: str = ""
    ranks: tuple[RankStack, ...] = ()
