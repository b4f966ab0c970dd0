"""What the reconciler can be told to do: named actions, each of which can be repeated. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from minicluster.wire import JobError
from minicluster_hub.jobs.records import TaskRecord
from minicluster_hub.jobs.states import JobEvent


@dataclass(frozen=True, slots=True)
class StartTask:
    task: TaskRecord


@dataclass(frozen=True, slots=True)
class MarkStarted:
    task: TaskRecord


@dataclass(frozen=True, slots=True)
class EndTask:
    task: TaskRecord


@dataclass(frozen=True, slots=True)
class MarkEnded:
    task: TaskRecord


@dataclass(frozen=True, slots=True)
class EndStray:
    """End a task that the engine has and the store does not: of a store that was put back, say."""

    task_id: int


@dataclass(frozen=True, slots=True)
class EndGang:
    gang_id: int
    reason: str


@dataclass(frozen=True, slots=True)
class DropTasks:
    """End some of a gang's tasks and keep the others together."""

    gang_id: int
    task_ids: tuple[int, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class StartLighthouse:
    """Have the meeting point of a fault-tolerant job's ranks, again if it died."""

    gang_id: int


@dataclass(frozen=True, slots=True)
class EndLighthouse:
    gang_id: int


@dataclass(frozen=True, slots=True)
class DataReady:
    """Keep that an attempt's data sets are on all its nodes."""

    job_id: int
    attempt_id: int


@dataclass(frozen=True, slots=True)
class Happened:
    """An event for a job's state machine. `losses`: its new count of them, None to leave it."""

    job_id: int
    event: JobEvent
    reason: str = ""
    error: JobError | None = None
    losses: int | None = None


Action = (
    StartTask
    | MarkStarted
    | EndTask
    | MarkEnded
    | EndStray
    | EndGang
    | DropTasks
    | StartLighthouse
    | EndLighthouse
    | DataReady
    | Happened
)
