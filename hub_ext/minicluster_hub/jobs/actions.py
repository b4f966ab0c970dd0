"""The reconciler's actions. Each can be repeated without harm. Pure."""

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
    """End a task that the engine has and the store does not, for example after a restored backup."""

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
    """Start the lighthouse where a fault-tolerant job's ranks meet, also again after it died."""

    gang_id: int


@dataclass(frozen=True, slots=True)
class EndLighthouse:
    gang_id: int


@dataclass(frozen=True, slots=True)
class DataReady:
    """Store that an attempt's data sets are on all its nodes."""

    job_id: int
    attempt_id: int


@dataclass(frozen=True, slots=True)
class ApplyEvent:
    """Apply an event to a job's state machine.

    lost_attempts: the job's new value (see JobRecord); None: unchanged.
    """

    job_id: int
    event: JobEvent
    reason: str = ""
    error: JobError | None = None
    lost_attempts: int | None = None


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
    | ApplyEvent
)
