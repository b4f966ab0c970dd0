"""Names for what the reconciler does, so that failures can be logged, counted and tried again. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from minicluster_hub.jobs.actions import (
    Action,
    ApplyEvent,
    DataReady,
    DropTasks,
    EndGang,
    EndLighthouse,
    EndStray,
    EndTask,
    MarkEnded,
    MarkStarted,
    StartLighthouse,
    StartTask,
)
from minicluster_hub.jobs.records import StoredState

Key = tuple[str, int]
"""The kind of an object (job, gang, task, lighthouse), and its id."""


class Verb(StrEnum):
    """What is done, where more than one module asks for it."""

    START = "starting"
    END = "ending"
    PLACE = "placing"


_DOING: dict[type[Action], str] = {
    StartTask: Verb.START,
    MarkStarted: "noting the start of",
    EndTask: Verb.END,
    EndStray: Verb.END,
    MarkEnded: "noting the end of",
    StartLighthouse: Verb.START,
    EndLighthouse: Verb.END,
    EndGang: Verb.END,
    DropTasks: "dropping tasks of",
    DataReady: "noting the data sets of",
    ApplyEvent: "changing the state of",
}


def task_key(task_id: int) -> Key:
    return "task", task_id


def lighthouse_key(gang_id: int) -> Key:
    return "lighthouse", gang_id


@dataclass(frozen=True, slots=True)
class Operation:
    """One thing that is done for a job, gang, task or lighthouse: "starting task 7", for example."""

    doing: str
    kind: str
    id: int

    def __str__(self) -> str:
        return f"{self.doing} {self.kind} {self.id}"


def operation_of(action: Action) -> Operation:
    """Return the operation that names an action in logs."""
    return Operation(_DOING[type(action)], *key_of(action))


def key_of(action: Action) -> Key:
    """Return the key of what an action changes."""
    match action:
        case StartTask(task) | MarkStarted(task) | EndTask(task) | MarkEnded(task):
            return task_key(task.id)
        case EndStray(task_id):
            return task_key(task_id)
        case StartLighthouse(gang_id) | EndLighthouse(gang_id):
            return lighthouse_key(gang_id)
        case EndGang(gang_id) | DropTasks(gang_id):
            return "gang", gang_id
        case DataReady(job_id) | ApplyEvent(job_id):
            return "job", job_id


def job_of(operation: Operation, stored: StoredState) -> int | None:
    """Return the job that an operation is for; None for a warm gang, a stray task, or a job that is over."""
    gang_id = operation.id
    if operation.kind == "job":
        return operation.id
    if operation.kind == "task":
        gang_id = next((task.gang_id for task in stored.tasks if task.id == operation.id), 0)
    return next((gang.job_id for gang in stored.gangs if gang.id == gang_id), None)


def all_keys(stored: StoredState, seen_tasks: Iterable[int], seen_lighthouses: Iterable[int]) -> set[Key]:
    """Return the keys of all jobs, gangs, tasks and lighthouses that exist."""
    gangs = {gang.id for gang in stored.gangs}
    return {
        *(("job", job.id) for job in stored.jobs),
        *(("gang", gang_id) for gang_id in gangs),
        *(task_key(task_id) for task_id in (*(task.id for task in stored.tasks), *seen_tasks)),
        *(lighthouse_key(gang_id) for gang_id in (*gangs, *seen_lighthouses)),
    }
