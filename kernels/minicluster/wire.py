"""The messages that cross a socket, shared by the notebook, the job service and the agents.

Each message is one frozen model, used on both ends. The server refuses unknown fields by name
(`parse_strict`); clients ignore them, so that a newer server can add some.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal, TypeVar

from pydantic import Base64Bytes, BaseModel, ConfigDict, Field, model_validator

WIRE_VERSION = 1
VERSION_HEADER = "Minicluster-Wire"
"""Every request carries it; a server that speaks another version answers 426 and says so."""

Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
EnvName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=128)]
StreamName = Annotated[str, Field(pattern=r"^(rank-\d{1,5}|records|agent-\d{1,5})$")]


class Message(BaseModel):
    """Base of all messages: frozen, unknown fields ignored unless parsed strictly.

    NaN and infinity travel as the strings "NaN" and "Infinity": JSON has no numbers for them.
    """

    model_config = ConfigDict(frozen=True, extra="ignore", ser_json_inf_nan="strings")


M = TypeVar("M", bound=BaseModel)


def parse_strict(model: type[M], body: bytes | str) -> M:
    """Parse a request's JSON, refusing unknown fields by name.

    Raises pydantic.ValidationError (the server's answer to it is 422).
    """
    return model.model_validate_json(body, extra="forbid")


class JobState(StrEnum):
    QUEUED = "queued"
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    FAILING = "failing"
    REQUEUING = "requeuing"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    STOPPED = "stopped"

    @property
    def terminal(self) -> bool:
        return self in (JobState.SUCCEEDED, JobState.FAILED, JobState.STOPPED)


class ErrorKind(StrEnum):
    """Why an attempt failed; text for people stands in `JobError.message`."""

    EXCEPTION = "exception"
    EXIT = "exit"
    SIGNAL = "signal"
    MEMORY = "memory"
    START = "start"
    LOST = "lost"
    TIMEOUT = "timeout"


class JobError(Message):
    """The first cause of a failure, told in words.

    `message` is one sentence; `traceback` is that of the culprit rank, with the cell's own line
    numbers; `at` is when it happened, in seconds since the epoch on the rank's node.
    """

    kind: ErrorKind
    message: str
    rank: int | None = None
    node: str | None = None
    traceback: str = ""
    hint: str = ""
    exit_code: int | None = None
    at: float | None = None


class ErrorDetail(Message):
    code: str
    message: str
    hint: str = ""


class ErrorAnswer(Message):
    """The body of every answer with a status of 400 or more."""

    error: ErrorDetail


# --- jobs: the notebook and the pages to the service ---------------------------------------------


class NodeRange(Message):
    """How many nodes a job takes: at least `min`, at most `max`."""

    min: int = Field(ge=1, le=10_000)
    max: int = Field(ge=1, le=10_000)

    @model_validator(mode="after")
    def _ordered(self) -> NodeRange:
        if self.min > self.max:
            raise ValueError(f"nodes {self.min}:{self.max}: the minimum is above the maximum")
        return self


class JobSpec(Message):
    """What a cell asks for.

    nodes: None means all nodes that the cluster has.
    slots_per_node: schedulable units (GPUs, or CPU shares) leased on each node.
    ranks_per_node: training processes on each node; None means one per slot.
    payload_sha256: the cell with its names, a blob that the service never opens.
    timeout_s: run time after which the job is ended as failed; None means the cluster's limit.
    """

    name: str = Field(default="cell", min_length=1, max_length=100)
    payload_sha256: Sha256
    nodes: NodeRange | None = None
    slots_per_node: int = Field(default=1, ge=1, le=64)
    ranks_per_node: int | None = Field(default=None, ge=1, le=256)
    env: dict[EnvName, str] = Field(default_factory=dict)
    timeout_s: float | None = Field(default=None, gt=0)

    @property
    def ranks_on_each_node(self) -> int:
        return self.ranks_per_node or self.slots_per_node


class JobSubmit(Message):
    """POST api/jobs. The same key from the same owner is the same job, however often it is sent."""

    idempotency_key: str = Field(min_length=8, max_length=64)
    spec: JobSpec


class BlobInfo(Message):
    sha256: Sha256
    size_bytes: int = Field(ge=0)


class Job(Message):
    """A job as its owner sees it. Times are seconds since the epoch on the service's clock."""

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


class JobList(Message):
    jobs: tuple[Job, ...]


class SlotUse(Message):
    """One slot of a node and who holds it (None: free). `warm`: held by an idle, warm gang."""

    slot: int
    kind: Literal["cpu", "gpu"] = "cpu"
    job_id: int | None = None
    owner: str | None = None
    warm: bool = False


class Node(Message):
    name: str
    up: bool
    slots: tuple[SlotUse, ...]


class NodeList(Message):
    nodes: tuple[Node, ...]


# --- server-sent events of one job ----------------------------------------------------------------


class LogChunk(Message):
    """Event `log`: text of one stream from byte `offset` on, `size_bytes` long on disk.

    `skipped_bytes` > 0: a reader that fell behind was moved forward by that much before `offset`.
    """

    stream: StreamName
    offset: int
    size_bytes: int
    text: str
    skipped_bytes: int = 0


class Record(Message):
    """One line of the stream `records`: what `mc.log` or `mc.progress` said."""

    kind: Literal["log", "progress"]
    rank: int
    at: float
    step: float | None = None
    values: dict[str, float] = Field(default_factory=dict)
    done: float | None = None
    total: float | None = None
    label: str = ""


class Records(Message):
    """Event `records`. Skipped in the middle when a reader falls behind, never at the end."""

    records: tuple[Record, ...]


# --- tasks: the agents to the service --------------------------------------------------------------


class RankState(StrEnum):
    PENDING = "pending"
    STARTED = "started"
    EXITED = "exited"


class RankReport(Message):
    """How a rank stands. `error` is there when it exited other than by its own success."""

    rank: int = Field(ge=0)
    state: RankState
    exit_code: int | None = Field(default=None, ge=-255, le=255)
    error: JobError | None = None


class StreamChunk(Message):
    """Bytes of a stream from `offset` on. The service keeps what it does not have yet."""

    stream: StreamName
    offset: int = Field(ge=0)
    data: Base64Bytes


class TaskReport(Message):
    """POST api/tasks/report: the whole of what an agent knows; each can be sent again.

    ready: the agent can run an attempt; `address` and `store_port` are where the next attempt's
        TCPStore listens if this task is the first of its gang.
    attempt: the id of the attempt that `ranks` and `chunks` and `result` speak of.
    cleared: the highest attempt id of which nothing is left here: no process, no unsent output.
    failure: why the agent itself cannot work (torch does not import, say).
    notes: sentences about the attempt for its owner (a rank that hung at exit, say).
    """

    ready: bool = False
    address: str = "127.0.0.1"
    store_port: int | None = Field(default=None, ge=1, le=65535)
    attempt: int | None = None
    ranks: tuple[RankReport, ...] = ()
    chunks: tuple[StreamChunk, ...] = ()
    result: BlobInfo | None = None
    cleared: int = 0
    failure: JobError | None = None
    notes: tuple[str, ...] = ()


class ReportAnswer(Message):
    """`sizes`: bytes that the service holds of each stream of the reported attempt."""

    sizes: dict[str, int] = Field(default_factory=dict)


class RunOrder(Message):
    """One attempt's place in the world, as the service decided it (env names as torchrun's)."""

    attempt: int
    job_id: int
    payload_sha256: Sha256
    first_rank: int
    local_world_size: int
    world_size: int
    group_rank: int
    group_world_size: int
    master_addr: str
    master_port: int
    restart_count: int = 0
    env: dict[str, str] = Field(default_factory=dict)


class StopMode(StrEnum):
    """interrupt: SIGINT, SIGTERM after 5 s, SIGKILL after 5 more. abort: SIGTERM, SIGKILL after 2 s."""

    INTERRUPT = "interrupt"
    ABORT = "abort"


class TaskOrders(Message):
    """GET api/tasks/orders?have=VERSION: what should be, not what happened; the newest counts.

    run: the attempt to run (again the same one: nothing to do). stop: how to end that attempt.
    Both None: keep warm and wait. `version` is a digest of the rest.
    """

    version: str
    run: RunOrder | None = None
    stop: StopMode | None = None
