"""What follows from lost or silent tasks: go on without them, restart, or give up. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from minicluster.wire import DISK_FULL_EXIT, ErrorKind, JobError, JobState, RankState
from minicluster_hub.jobs.actions import ApplyEvent, DropTasks, EndGang
from minicluster_hub.jobs.connectivity import unreachable_message
from minicluster_hub.jobs.gang_state import CLEANUP_STATES, GangState, LifecycleLimits, Observation
from minicluster_hub.jobs.records import JobRecord, RankRecord, StoredState, TaskRecord, TaskState
from minicluster_hub.jobs.slot_numbers import total
from minicluster_hub.jobs.states import JobEvent


def without_unusable(
    gang_state: GangState, observation: Observation, limits: LifecycleLimits
) -> Iterator[DropTasks | EndGang]:
    """Drop the tasks that cannot go on. The gang keeps the others, warm and with their snapshots."""
    late = _late(gang_state, observation, limits)
    gone = {task.id for task in (*gang_state.lost, *gang_state.unreachable)}
    if gang_state.tolerates_loss:
        bad = [task for task in gang_state.tasks if task.id in gone or _cannot_join(task, gang_state)]
    else:
        gone |= {task.id for task in gang_state.tasks if _is_useless(task, gang_state, observation, limits)}
        starts = gang_state.gang.prepared
        unready = [task for task in gang_state.tasks if task.state is not TaskState.READY and not starts]
        bad = [task for task in gang_state.tasks if task.id in gone or task in unready or task in late]
    reason = "an agent did not end its ranks" if late else _lacks_data(bad, gang_state)
    if bad and len(bad) == len(gang_state.tasks):
        yield EndGang(gang_state.gang.id, reason)
    elif bad:
        yield DropTasks(gang_state.gang.id, tuple(task.id for task in bad), reason)


def lost_task(gang_state: GangState, job: JobRecord, observation: Observation) -> ApplyEvent | None:
    """Return the event of a job that lost a task; None if it lost none, or goes on without it."""
    others_go_on = gang_state.tolerates_loss and len(gang_state.lost) < len(gang_state.tasks)
    if not gang_state.lost or others_go_on:
        return None
    task = gang_state.lost[0]
    view = observation.views.get(task.id)
    last_words = view.detail if view is not None else ""
    ended_by_itself = view is None or not (view.alive or view.node_lost)
    if job.state is JobState.STARTING and not gang_state.assembled and ended_by_itself:
        words = f"the task on {task.node} ended before it could start its ranks"
        error = JobError(kind=ErrorKind.START, node=task.node, message=words, traceback=last_words)
        return ApplyEvent(job.id, JobEvent.FAILURE_SEEN, words, error)
    if filler := next((one for one in gang_state.lost if _filled_disk(one, observation)), None):
        words = (
            f"the task on {filler.node} was ended because it filled the node's disk, which was nearly full"
        )
        error = JobError(kind=ErrorKind.LOST, node=filler.node, message=words, hint="Keep less there.")
        return ApplyEvent(job.id, JobEvent.FAILURE_SEEN, words, error)
    if job.spec.session and job.state is not JobState.STARTING:
        return _session_lost(job, task)
    lost_attempts = 1 if _got_further(gang_state, job) else job.lost_attempts + 1
    return ApplyEvent(
        job.id, JobEvent.TASK_LOST, f"the task on {task.node} was lost", lost_attempts=lost_attempts
    )


def _session_lost(job: JobRecord, task: TaskRecord) -> ApplyEvent | None:
    """Return the failure of a running session: new ranks would lack what its cells have made."""
    if job.state is not JobState.RUNNING:
        return None
    words = f"the session lost its ranks on {task.node}, with all that they had"
    hint = "%distribute up starts another one. What was brought here by %distribute pull is still here."
    error = JobError(kind=ErrorKind.LOST, node=task.node, message=words, hint=hint)
    return ApplyEvent(job.id, JobEvent.FAILURE_SEEN, words, error)


def unreached_task(
    gang_state: GangState, job: JobRecord, observation: Observation, limits: LifecycleLimits
) -> ApplyEvent | None:
    """Return the event of a starting job some of whose tasks are unreachable; None while it waits.

    If the others are enough, the job restarts with them. Otherwise it waits: a machine may come back.
    """
    if job.state is not JobState.STARTING or not gang_state.unreachable:
        return None
    unreachable = {task.id for task in gang_state.unreachable}
    slots = sum(total(task.slots) for task in gang_state.tasks if task.id not in unreachable)
    enough = job.spec.replicas is None or slots // job.spec.slots_per_replica >= job.spec.replicas.min
    since = gang_state.starting_since(observation.views)
    if not enough and (since is None or observation.now - since <= limits.connectivity_timeout_s):
        return None
    lost_attempts = job.lost_attempts if enough else job.lost_attempts + 1
    return ApplyEvent(
        job.id, JobEvent.TASK_LOST, unreachable_message(gang_state.unreachable), lost_attempts=lost_attempts
    )


def given_up(job: JobRecord, limits: LifecycleLimits) -> ApplyEvent | None:
    """Return the failure of a queued job that lost too many attempts; None for any other job."""
    if job.state is not JobState.QUEUED or job.lost_attempts < limits.max_lost_attempts:
        return None
    words = f"{job.lost_attempts} attempts in a row lost a task and got no further than the one before"
    hint = (
        "Its history names the nodes; an admin's `doctor` checks whether they reach each other. "
        "With mc.checkpoint() a job goes on from where it was."
    )
    error = JobError(kind=ErrorKind.LOST, message=words, hint=hint)
    return ApplyEvent(job.id, JobEvent.FAILURE_SEEN, words, error)


def unreadable(job: JobRecord) -> ApplyEvent | None:
    """Return the end of a job whose record cannot be read; None for any other job."""
    if not job.unreadable:
        return None
    words = f"the record of this job cannot be read: {job.unreadable}"
    hint = "It may be of another release, or damaged. Submit the job again."
    error = JobError(kind=ErrorKind.LOST, message=words, hint=hint)
    return ApplyEvent(job.id, JobEvent.GIVEN_UP, words, error)


def image_retired(job: JobRecord, stored: StoredState) -> ApplyEvent | None:
    """Return the failure of a queued job whose image may not run any more; None for any other job."""
    if job.state is not JobState.QUEUED or job.spec.image not in stored.refused_images:
        return None
    words = f"the image {job.spec.image} was retired while the job waited"
    hint = "Choose another one with --image: %distribute images lists them."
    error = JobError(kind=ErrorKind.START, message=words, hint=hint)
    return ApplyEvent(job.id, JobEvent.FAILURE_SEEN, words, error)


def _filled_disk(task: TaskRecord, observation: Observation) -> bool:
    """Whether an agent of an earlier release, which does not report it, ended because of a full disk."""
    view = observation.views.get(task.id)
    return view is not None and view.exit_code == DISK_FULL_EXIT


def _is_useless(
    task: TaskRecord, gang_state: GangState, observation: Observation, limits: LifecycleLimits
) -> bool:
    """Whether a task is useless for the job that it is held for: its node is down.

    As long as it would be warm anyway, it may be of use to another job.
    """
    held = gang_state.held_for_recovery_until > observation.now
    return held and task.node in observation.down and gang_state.idle_until(limits) <= observation.now


def _late(gang_state: GangState, observation: Observation, limits: LifecycleLimits) -> list[TaskRecord]:
    """Return the tasks that did not clean up an ending attempt in time."""
    job = gang_state.job
    if job is None or job.state not in CLEANUP_STATES:
        return []
    waited_s = observation.now - job.state_since
    left = [task for task in gang_state.tasks if task.cleaned_up_attempt_id < (job.attempt_id or 0)]
    return [
        task
        for task in left
        if waited_s > limits.end_timeout_s(job.state, uploading=gang_state.only_uploads_left(task))
    ]


def _cannot_join(task: TaskRecord, gang_state: GangState) -> bool:
    """Whether a task that should join a running attempt cannot, or comes too late and would train alone."""
    ranks = [rank for rank in gang_state.living_ranks if rank.task_id == task.id]
    waiting = all(rank.state is RankState.PENDING for rank in ranks)
    if waiting and (
        task.failure or _lacks_data([task], gang_state) or _has_finished(gang_state.living_ranks)
    ):
        return True
    first = gang_state.tasks[0]
    result_uploaded = (
        first.cleaned_up_attempt_id >= (gang_state.job.attempt_id or 0) if gang_state.job else False
    )
    return result_uploaded and ranks[0].joined and task is not first and not _has_finished(ranks)


def _lacks_data(tasks: Iterable[TaskRecord], gang_state: GangState) -> str:
    """Return why one of these tasks' nodes cannot get a data set; "" if all can, as far as is known."""
    if gang_state.data is None:
        return ""
    lacking = gang_state.data.lacking
    return next((lacking[task.node].message for task in tasks if task.node in lacking), "")


def _has_finished(ranks: Iterable[RankRecord]) -> bool:
    return any(rank.state is RankState.EXITED and rank.error is None for rank in ranks)


def _got_further(gang_state: GangState, job: JobRecord) -> bool:
    """Whether the attempt left a snapshot that the next attempt can continue from."""
    return any(snapshot.attempt_id == job.attempt_id for snapshot in gang_state.snapshots)
