"""Reports and orders: messages between agents and the service."""

from __future__ import annotations

from enum import StrEnum

from pydantic import Base64Bytes, Field

from minicluster.wire.base import Count, Message, Sha256, StreamName, Versions
from minicluster.wire.files.artifacts import ArtifactReport, OutputLimits, SnapshotRef, SnapshotReport
from minicluster.wire.jobs import BlobInfo, JobError
from minicluster.wire.limits import (
    CHUNK_CHARS,
    CHUNKS,
    FILES_OF_REPORT,
    PARTS_OF_JOB,
    PROFILE_RANKS,
    PROFILE_STEPS,
    RANKS_OF_TASK,
    SNAPSHOTS_OF_REPORT,
    Address,
    Addresses,
    Endings,
    Notes,
)
from minicluster.wire.machines.readings import RankReading
from minicluster.wire.serving.replicas import ReplicaOf, ReplicaState
from minicluster.wire.sessions import INLINE_CHARS, CellSignals
from minicluster.wire.stacks import RankStack
from minicluster.wire.sweeps.trials import TrialRef
from minicluster.wire.training.framework import Framework

DISK_FULL_SIGNAL = 30
"""SIGPWR, which nothing else sends: the container is ended because it fills its node's disk."""
DISK_FULL_EXIT = 128 + DISK_FULL_SIGNAL
"""The exit code of a container that this signal ends because its first process does not handle it."""


class RankState(StrEnum):
    PENDING = "pending"
    STARTED = "started"
    EXITED = "exited"


class RankReport(Message):
    """The state of a rank. error: set if it exited without success."""

    rank: Count
    state: RankState
    exit_code: int | None = Field(default=None, ge=-255, le=255)
    error: JobError | None = None


class StreamChunk(Message):
    """Bytes of a stream from `offset` on. The service appends what it does not have yet."""

    stream: StreamName
    offset: Count
    data: Base64Bytes = Field(max_length=CHUNK_CHARS)


class TaskReport(Message):
    """POST api/tasks/report: all that an agent knows; it can be repeated.

    ready: the agent can run an attempt; `address` and `store_port` are where the next attempt's
        TCPStore listens if this task is the first of its gang.
    attempt: the id of the attempt that `ranks`, `chunks` and `result` belong to.
    result: the result of the task's first rank, which the service has already. result_data: its bytes, if it
        is small and the service may not have it yet.
    cleared: the highest attempt id of which nothing is left here: no process, no unsent output.
    versions: what the ranks will have, from what is installed beside the agent.
    failure: why the agent itself cannot work (torch does not import, say).
    notes: sentences about the attempt for its owner (a rank that hung at exit, say).
    snapshots: the newest that the agent has uploaded into the job's storage.
    artifacts: files of the output folder that were uploaded and that no answered report has named.
    quiet: the stalled ranks: no progress for the order's `quiet_after_s`.
    look: the id of the newest stack dump request that was answered. stacks: the answer.
    ending: sentences about ranks whose cell is over and which wait for what it started.
    unreached: those of the order's `peers` for which the ranks wait; reported after some seconds.
    readings: what the ranks used, since the last report that was answered.
    replica: of a served model, if the task has one.
    """

    ready: bool = False
    address: Address = "127.0.0.1"
    store_port: int | None = Field(default=None, ge=1, le=65535)
    attempt: Count | None = None
    ranks: tuple[RankReport, ...] = Field(default=(), max_length=RANKS_OF_TASK)
    chunks: tuple[StreamChunk, ...] = Field(default=(), max_length=CHUNKS)
    result: BlobInfo | None = None
    result_data: Base64Bytes | None = Field(default=None, max_length=INLINE_CHARS)
    cleared: Count = 0
    versions: Versions | None = None
    failure: JobError | None = None
    notes: Notes = ()
    snapshots: tuple[SnapshotReport, ...] = Field(default=(), max_length=SNAPSHOTS_OF_REPORT)
    artifacts: tuple[ArtifactReport, ...] = Field(default=(), max_length=FILES_OF_REPORT)
    quiet: tuple[Count, ...] = Field(default=(), max_length=RANKS_OF_TASK)
    look: Count = 0
    stacks: tuple[RankStack, ...] = Field(default=(), max_length=RANKS_OF_TASK)
    ending: Endings = ()
    unreached: Addresses = ()
    readings: tuple[RankReading, ...] = Field(default=(), max_length=RANKS_OF_TASK)
    replica: ReplicaState | None = None


class ReportAnswer(Message):
    """`sizes`: bytes that the service holds of each stream of the reported attempt.

    missing: reported files of the output folder that the service lacks; they are to be sent again.
    """

    sizes: dict[str, int] = Field(default_factory=dict)
    missing: tuple[Sha256, ...] = ()


class RunOrder(Message):
    """One attempt's place in the world, as the service decided it (env names as torchrun's).

    snapshot: the newest one in the job's storage that attempts before this one left.
    quiet_after_s: the stall timeout: time without progress after which a rank is reported; 0: never.
    fault_tolerant: the ranks go on when others are lost; then world_size is that of the beginning.
    lighthouse: host:port of the job's lighthouse, if so. joins: the attempt runs already.
    lead: this task's first rank brings the result; may change while the attempt runs, with no effect
        but this. None: the task with rank 0.
    output: what the task may bring of its output folder. bundle_sha256, parts: see JobSpec.
    data: the data sets of the job, and the folder of each in its node's cache.
    peers: host:port of each of the other tasks; all are reached before ranks start.
    seed, comm, balance: see JobSpec.
    trial: the trial of a sweep that the job is.
    session: the ranks run the cells that come after the first.
    framework: the library that trains in the ranks.
    serve: the rank is a replica of a model. serve_secret: each request that it may answer has it.
    """

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
    snapshot: SnapshotRef | None = None
    quiet_after_s: float = 0.0
    fault_tolerant: bool = False
    lighthouse: str = ""
    joins: bool = False
    lead: bool | None = None
    output: OutputLimits = OutputLimits()
    bundle_sha256: Sha256 | None = None
    parts: tuple[Sha256, ...] = ()
    data: dict[str, str] = Field(default_factory=dict)
    peers: tuple[str, ...] = ()
    seed: int | None = None
    comm: str | None = None
    balance: bool = False
    trial: TrialRef | None = None
    session: bool = False
    framework: Framework = Framework.TORCH
    serve: ReplicaOf | None = None
    serve_secret: str = Field(default="", max_length=128)

    @property
    def returns_result(self) -> bool:
        return self.first_rank == 0 if self.lead is None else self.lead


class StopMode(StrEnum):
    """interrupt: SIGINT, SIGTERM after 4 s, SIGKILL after 1 more. abort: SIGTERM, SIGKILL after 2 s.

    yield: SIGKILL at once, and the newest snapshot goes into the job's storage: it starts again later.
    kill: SIGKILL at once; the job goes on without a lost node from the newest snapshot in the others' memory.
    """

    INTERRUPT = "interrupt"
    ABORT = "abort"
    YIELD = "yield"
    KILL = "kill"


class ProfileRequest(Message):
    """POST api/runs/{run_id}/profile: profile the next steps of these ranks."""

    steps: int = Field(default=10, ge=1, le=PROFILE_STEPS)
    ranks: tuple[Count, ...] = Field(default=(0,), min_length=1, max_length=PROFILE_RANKS)


class ProfileOrder(ProfileRequest):
    """A request that has come to the ranks' agents. id: each new one is done once."""

    id: int


class TaskOrders(Message):
    """GET api/tasks/orders?have=VERSION: the desired state of a task, not commands; the newest one counts.

    run: the attempt to run; nothing is to be done if it runs already. stop: how to end that attempt.
    Both None: stay warm and wait. version: a digest of the rest.
    look: the id of the newest request for a stack dump; each new id is answered once. 0: there was none.
    leave: the trial is pruned: its ranks leave together, at one of their next calls of mc.log. A replica of a
        model takes no more requests, and ends once it has answered those that it has.
    profile: the newest request to profile ranks; None: there was none.
    cells: what to do about the cell that a session runs.
    coming: large parts that the task's owner has just uploaded, for a job that may come here: a task without
        anything else to do fetches them.
    """

    version: str
    run: RunOrder | None = None
    stop: StopMode | None = None
    look: int = 0
    leave: bool = False
    profile: ProfileOrder | None = None
    cells: CellSignals = CellSignals()
    coming: tuple[Sha256, ...] = Field(default=(), max_length=PARTS_OF_JOB)
