"""What follows from lost or silent tasks: go on without them, restart, or give up. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from minicluster.wire import DISK_FULL_EXIT, ErrorKind, JobError, JobState, RankState
from minicluster_hub.jobs.actions import DropTasks, EndGang, Happened
from minicluster_hub.jobs.connectivity import sentence
from minicluster_hub.jobs.gang_state import ENDING, GangState, LifecycleLimits, Observation
from minicluster_hub.jobs.records import JobRecord, RankRecord, TaskRecord, TaskState, World
from minicluster_hub.jobs.states import JobEvent


def without_unusable(
    gang_state: GangState, observation: Observation, limits: LifecycleLimits
) -> Iterator[DropTasks | EndGang]:
    """Drop the tasks that cannot go on; the others stay together, warm and with their snapshots."""
    late = _late(gang_state, observation, limits)
    gone = {task.id for task in (*gang_state.lost, *gang_state.apart)}
    if gang_state.tolerates_loss:
        bad = [task for task in gang_state.tasks if task.id in gone or _joins_in_vain(task, gang_state)]
    else:
        gone |= {task.id for task in gang_state.tasks if _is_no_use(task, gang_state, observation, limits)}
        unready = [task for task in gang_state.tasks if task.state is not TaskState.READY]
        bad = [task for task in gang_state.tasks if task.id in gone or task in unready or task in late]
    reason = "an agent did not end its ranks" if late else _lacks_data(bad, gang_state)
    if bad and len(bad) == len(gang_state.tasks):
        yield EndGang(gang_state.gang.id, reason)
    elif bad:
        yield DropTasks(gang_state.gang.id, tuple(task.id for task in bad), reason)


def lost_task(gang_state: GangState, job: JobRecord, observation: Observation) -> Happened | None:
    """Return the event of a job that lost a task; None if none is lost, or the others go on."""
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
        return Happened(job.id, JobEvent.FAILURE_SEEN, words, error)
    if filler := next((one for one in gang_state.lost if _filled_disk(one, observation)), None):
        words = (
            f"the task on {filler.node} was ended because it filled the node's disk, which was nearly full"
        )
        error = JobError(kind=ErrorKind.LOST, node=filler.node, message=words, hint="Keep less there.")
        return Happened(job.id, JobEvent.FAILURE_SEEN, words, error)
    losses = 1 if _got_further(gang_state, job) else job.losses + 1
    return Happened(job.id, JobEvent.TASK_LOST, f"the task on {task.node} was lost", losses=losses)


def unreached_task(
    gang_state: GangState, job: JobRecord, observation: Observation, limits: LifecycleLimits
) -> Happened | None:
    """Return the event of a starting job whose tasks do not reach each other; None while it waits for them.

    If the other tasks are enough, it goes on without them. Otherwise it waits: a machine may come back.
    """
    if job.state is not JobState.STARTING or not gang_state.apart:
        return None
    apart = {task.id for task in gang_state.apart}
    slots = sum(len(task.slots) for task in gang_state.tasks if task.id not in apart)
    enough = job.spec.replicas is None or slots // job.spec.slots_per_node >= job.spec.replicas.min
    since = gang_state.starting_since(observation.views)
    if not enough and (since is None or observation.now - since <= limits.meet_patience_s):
        return None
    losses = job.losses if enough else job.losses + 1
    return Happened(job.id, JobEvent.TASK_LOST, sentence(gang_state.apart), losses=losses)


def given_up(job: JobRecord, limits: LifecycleLimits) -> Happened | None:
    """Return the failure of a queued job that lost too many attempts, None for any other."""
    if job.state is not JobState.QUEUED or job.losses < limits.max_losses:
        return None
    words = f"{job.losses} attempts in a row lost a task and got no further than the one before"
    hint = (
        "Its history names the nodes; an admin's `doctor` checks whether they reach each other. "
        "With mc.checkpoint() a job goes on from where it was."
    )
    error = JobError(kind=ErrorKind.LOST, message=words, hint=hint)
    return Happened(job.id, JobEvent.FAILURE_SEEN, words, error)


def unreadable(job: JobRecord) -> Happened | None:
    """Return the end of a job whose record cannot be read, None for any other."""
    if not job.unreadable:
        return None
    words = f"the record of this job cannot be read: {job.unreadable}"
    hint = "It may be of another release, or damaged. Submit the job again."
    error = JobError(kind=ErrorKind.LOST, message=words, hint=hint)
    return Happened(job.id, JobEvent.GIVEN_UP, words, error)


def image_retired(job: JobRecord, world: World) -> Happened | None:
    """Return the failure of a queued job whose image may not run any more, None for any other."""
    if job.state is not JobState.QUEUED or job.spec.image not in world.refused_images:
        return None
    words = f"the image {job.spec.image} was retired while the job waited"
    hint = "Choose another one with --image: %distribute images lists them."
    error = JobError(kind=ErrorKind.START, message=words, hint=hint)
    return Happened(job.id, JobEvent.FAILURE_SEEN, words, error)


def _filled_disk(task: TaskRecord, observation: Observation) -> bool:
    """Whether a full disk ended an agent that does not report it, since it is of an earlier release."""
    view = observation.views.get(task.id)
    return view is not None and view.exit_code == DISK_FULL_EXIT


def _is_no_use(
    task: TaskRecord, gang_state: GangState, observation: Observation, limits: LifecycleLimits
) -> bool:
    """Whether a warm task that a job waits for is on a node that is down, for longer than tasks stay warm."""
    awaited = gang_state.awaited_until > observation.now
    return awaited and task.node in observation.down and gang_state.idle_until(limits) <= observation.now


def _late(gang_state: GangState, observation: Observation, limits: LifecycleLimits) -> list[TaskRecord]:
    """Return the tasks that did not clear an ending attempt away in time."""
    job = gang_state.job
    if job is None or job.state not in ENDING:
        return []
    waited_s = observation.now - job.state_since
    left = [task for task in gang_state.tasks if task.cleared < (job.attempt_id or 0)]
    return [
        task for task in left if waited_s > limits.end_patience_s(job.state, brings=gang_state.brings(task))
    ]


def _joins_in_vain(task: TaskRecord, gang_state: GangState) -> bool:
    """Whether a task that was to join cannot, or comes too late and would train on alone."""
    ranks = [rank for rank in gang_state.living_ranks if rank.task_id == task.id]
    waits = all(rank.state is RankState.PENDING for rank in ranks)
    if waits and (task.failure or _lacks_data([task], gang_state) or _has_finished(gang_state.living_ranks)):
        return True
    first = gang_state.tasks[0]
    brought = first.cleared >= (gang_state.job.attempt_id or 0) if gang_state.job else False
    return brought and ranks[0].joined and task is not first and not _has_finished(ranks)


def _lacks_data(tasks: Iterable[TaskRecord], gang_state: GangState) -> str:
    """Return why a data set cannot come to one of these tasks' nodes, "" if none is known to be missing."""
    if gang_state.data is None:
        return ""
    lacking = gang_state.data.lacking
    return next((lacking[task.node].message for task in tasks if task.node in lacking), "")


def _has_finished(ranks: Iterable[RankRecord]) -> bool:
    return any(rank.state is RankState.EXITED and rank.error is None for rank in ranks)


def _got_further(gang_state: GangState, job: JobRecord) -> bool:
    """Whether the attempt left a snapshot that the next one can go on from."""
    return any(snapshot.attempt_id == job.attempt_id for snapshot in gang_state.snapshots)
