"""What must happen next, decided from the stored world and what the engine sees: pure.

`decide` returns named actions; the reconciler carries them out. Each can be repeated.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from minicluster.wire import ErrorKind, JobError, JobState, RankState
from minicluster_hub.models import GangTarget, JobRecord, TaskRecord, TaskState, World
from minicluster_hub.root_cause import root_cause
from minicluster_hub.scenes import ENDING, Limits, Scene, Sight, scenes
from minicluster_hub.states import JobEvent


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
class Happened:
    """An event for a job's state machine."""

    job_id: int
    event: JobEvent
    reason: str = ""
    error: JobError | None = None


Action = StartTask | MarkStarted | EndTask | MarkEnded | EndStray | EndGang | Happened


def decide(world: World, sight: Sight, limits: Limits) -> tuple[Action, ...]:
    """Return what must happen next."""
    known = {task.id for task in world.tasks}
    actions: list[Action] = [EndStray(task_id) for task_id in sight.views if task_id not in known]
    for scene in scenes(world, sight, limits):
        actions += _task_actions(scene, sight)
        actions += _gang_actions(scene, sight, limits)
        if scene.job is not None:
            actions += _job_actions(scene, scene.job, sight, limits)
    return tuple(actions)


def _task_actions(scene: Scene, sight: Sight) -> Iterator[Action]:
    for task in scene.tasks:
        view = sight.views.get(task.id)
        if task.state is TaskState.ENDED:
            continue
        if scene.gang.target is GangTarget.END:
            yield MarkEnded(task) if view is None or view.clean else EndTask(task)
        elif task.state is TaskState.NEW and view is not None and view.alive and not view.starting:
            yield MarkStarted(task)
        elif task.state is TaskState.NEW and view is None:
            yield StartTask(task)


def _gang_actions(scene: Scene, sight: Sight, limits: Limits) -> Iterator[Action]:
    gang = scene.gang
    if gang.target is GangTarget.END:
        return
    if scene.job is not None and scene.job.state in ENDING:
        late = sight.now - scene.job.state_since > limits.stop_patience_s
        if late or scene.lost or not scene.assembled:
            yield EndGang(gang.id, "an agent did not end its ranks" if late else "")
    elif gang.job_id is None:
        idle_s = sight.now - (gang.idle_since if gang.idle_since is not None else gang.created_at)
        failed = any(task.failure for task in scene.tasks)
        if scene.lost or failed or not scene.assembled or idle_s >= limits.keep_warm_s:
            yield EndGang(gang.id, "")


def _job_actions(scene: Scene, job: JobRecord, sight: Sight, limits: Limits) -> Iterator[Action]:
    if job.state in ENDING:
        if scene.cleared():
            error = root_cause(scene.ranks) if job.state is JobState.FAILING else None
            yield Happened(job.id, JobEvent.CLEARED, error=error)
    elif job.state in (JobState.STARTING, JobState.RUNNING):
        happened = _progress(scene, job, sight, limits)
        if happened is not None:
            yield happened


def _progress(scene: Scene, job: JobRecord, sight: Sight, limits: Limits) -> Happened | None:
    """Return the one event that a starting or running job's scene shows, the gravest first."""
    failed = [rank for rank in scene.ranks if rank.error is not None]
    if failed:
        return Happened(job.id, JobEvent.FAILURE_SEEN, f"rank {failed[0].rank} failed; ending the others")
    if scene.cleared() and all(rank.state is RankState.EXITED for rank in scene.ranks):
        return Happened(job.id, JobEvent.RANKS_SUCCEEDED)
    trouble = _agent_trouble(scene, job, sight, limits) or _overdue(scene, job, sight, limits)
    if trouble is not None:
        return trouble
    started = all(rank.state is not RankState.PENDING for rank in scene.ranks)
    if job.state is JobState.STARTING and started:
        return Happened(job.id, JobEvent.RANKS_STARTED)
    return None


def _agent_trouble(scene: Scene, job: JobRecord, sight: Sight, limits: Limits) -> Happened | None:
    for task in scene.tasks:
        if task.failure is not None:
            error = task.failure.model_copy(update={"node": task.node})
            return Happened(job.id, JobEvent.FAILURE_SEEN, error.message, error)
    if not scene.lost:
        return None
    task = scene.lost[0]
    view = sight.views.get(task.id)
    words = f"the task on {task.node} was lost"
    detail = view.detail if view is not None else ""
    ended = view is None or not (view.alive or view.node_lost)
    if job.state is JobState.STARTING and not scene.assembled and ended:
        error = JobError(
            kind=ErrorKind.START,
            node=task.node,
            message=f"the task on {task.node} ended before it could start its ranks",
            traceback=detail,
        )
        return Happened(job.id, JobEvent.FAILURE_SEEN, error.message, error)
    if job.attempts < limits.max_attempts:
        return Happened(job.id, JobEvent.TASK_LOST, f"{words}; starting again")
    error = JobError(
        kind=ErrorKind.LOST,
        node=task.node,
        message=f"{words}, and this was attempt {job.attempts} of {limits.max_attempts}",
        traceback=detail,
    )
    return Happened(job.id, JobEvent.FAILURE_SEEN, error.message, error)


def _overdue(scene: Scene, job: JobRecord, sight: Sight, limits: Limits) -> Happened | None:
    since = scene.starting_since(sight.views)
    if job.state is JobState.STARTING and since is not None and sight.now - since > limits.start_timeout_s:
        message = f"the tasks were not ready after {limits.start_timeout_s:.0f} s"
        error = JobError(kind=ErrorKind.START, message=message, hint="Is the machine out of memory?")
        return Happened(job.id, JobEvent.FAILURE_SEEN, message, error)
    if job.state is JobState.STARTING and sight.now - job.state_since > limits.pull_timeout_s:
        message = f"the nodes did not get the image within {limits.pull_timeout_s / 60:.0f} minutes"
        error = JobError(
            kind=ErrorKind.START, message=message, hint="An admin's `doctor` tells which link is slow."
        )
        return Happened(job.id, JobEvent.FAILURE_SEEN, message, error)
    limit = job.spec.timeout_s
    if job.state is JobState.RUNNING and limit and sight.now - job.state_since > limit:
        message = f"the job ran longer than its time limit of {limit:g} s"
        error = JobError(kind=ErrorKind.TIMEOUT, message=message, hint="Give more with --timeout.")
        return Happened(job.id, JobEvent.FAILURE_SEEN, message, error)
    return None
