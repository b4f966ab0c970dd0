"""What must happen next, decided from the stored world and what the engine sees: pure.

`decide` returns named actions; the reconciler carries them out. Each can be repeated.
"""

from __future__ import annotations

from collections.abc import Iterator

from minicluster.wire import ErrorKind, JobError, JobState, RankState
from minicluster_hub.jobs.actions import (
    Action,
    DataReady,
    EndGang,
    EndLighthouse,
    EndStray,
    EndTask,
    Happened,
    MarkEnded,
    MarkStarted,
    StartLighthouse,
    StartTask,
)
from minicluster_hub.jobs.gang_state import (
    ENDING,
    Isolate,
    Limits,
    Scene,
    Sight,
    lost_connections,
    scenes,
    together,
)
from minicluster_hub.jobs.last_locations import final_error
from minicluster_hub.jobs.losses import (
    given_up,
    image_retired,
    lost_task,
    unreached_task,
    unreadable,
    without_unusable,
)
from minicluster_hub.jobs.records import GangTarget, JobRecord, TaskState, World
from minicluster_hub.jobs.states import JobEvent


def decide(world: World, sight: Sight, limits: Limits, isolate: Isolate = together) -> tuple[Action, ...]:
    """Return what must happen next; nothing for a gang of which deciding raises, if that is isolated."""
    known = {task.id for task in world.tasks}
    actions: list[Action] = [EndStray(task_id) for task_id in sight.views if task_id not in known]
    failures = (unreadable(job) or given_up(job, limits) or image_retired(job, world) for job in world.jobs)
    actions += [failure for failure in failures if failure]
    for scene in scenes(world, sight, limits, isolate):
        with isolate("deciding for", scene.gang):
            actions += tuple(_scene_actions(scene, sight, limits))
    return (*actions, *_lighthouse_actions(world, sight))


def _scene_actions(scene: Scene, sight: Sight, limits: Limits) -> Iterator[Action]:
    if scene.job is not None and scene.job.unreadable:
        return  # Its end was decided above, and nothing of its scene is certain.
    yield from _task_actions(scene, sight)
    if scene.job is not None:
        yield from _job_actions(scene, scene.job, sight, limits)
    yield from _gang_actions(scene, sight, limits)


def _lighthouse_actions(world: World, sight: Sight) -> Iterator[Action]:
    """Keep one alive for the gang of each fault-tolerant job, as long as it is the job's."""
    jobs = {job.id: job for job in world.jobs}
    wanted = {
        gang.id for gang in world.gangs if gang.job_id in jobs and jobs[gang.job_id].spec.fault_tolerant
    }
    for gang_id in wanted:
        view = sight.lighthouses.get(gang_id)
        if view is None or not view.alive:
            yield StartLighthouse(gang_id)
    for gang_id in sight.lighthouses.keys() - wanted:
        yield EndLighthouse(gang_id)


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
    if gang.job_id is None:
        idle = scene.warm_until(limits) <= sight.now
        if idle or any(task.failure for task in scene.tasks):
            yield EndGang(gang.id, "")
            return
    if scene.job is None or scene.job.state in ENDING or scene.tolerates_loss:
        yield from without_unusable(scene, sight, limits)


def _job_actions(scene: Scene, job: JobRecord, sight: Sight, limits: Limits) -> Iterator[Action]:
    if job.state in ENDING:
        loss = lost_task(scene, job, sight) if lost_connections(job, scene.ranks) else None
        if loss is not None:
            yield loss
        elif scene.cleared():
            error = final_error(job.error, scene.ranks) if job.state is JobState.FAILING else None
            yield Happened(job.id, JobEvent.CLEARED, error=error)
    elif job.state in (JobState.STARTING, JobState.RUNNING):
        if scene.data is not None and scene.data.ready and job.data_attempt_id != job.attempt_id:
            yield DataReady(job.id, job.attempt_id or 0)
        happened = _progress(scene, job, sight, limits)
        if happened is not None:
            yield happened


def _progress(scene: Scene, job: JobRecord, sight: Sight, limits: Limits) -> Happened | None:
    """Return the one event that a starting or running job's scene shows, the gravest first."""
    ranks = scene.living_ranks
    failed = [rank for rank in ranks if rank.error is not None]
    if failed:
        return Happened(job.id, JobEvent.FAILURE_SEEN, f"rank {failed[0].rank} failed; ending the others")
    if ranks and scene.cleared() and all(rank.state is RankState.EXITED for rank in ranks):
        return Happened(job.id, JobEvent.RANKS_SUCCEEDED)
    trouble = (
        _agents_failure(scene, job)
        or lost_task(scene, job, sight)
        or _data_failure(scene, job)
        or unreached_task(scene, job, sight, limits)
        or _overdue(scene, job, sight, limits)
    )
    if trouble is not None:
        return trouble
    started = all(rank.state is not RankState.PENDING for rank in ranks)
    if job.state is JobState.STARTING and started:
        return Happened(job.id, JobEvent.RANKS_STARTED)
    return None


def _agents_failure(scene: Scene, job: JobRecord) -> Happened | None:
    """Return what an agent says of itself; one that was only to join a running attempt is dropped."""
    task = next((task for task in scene.tasks if task.failure is not None), None)
    if task is None or task.failure is None or scene.tolerates_loss:
        return None
    error = task.failure.model_copy(update={"node": task.node})
    return Happened(job.id, JobEvent.FAILURE_SEEN, error.message, error)


def _data_failure(scene: Scene, job: JobRecord) -> Happened | None:
    trouble = scene.data.trouble if scene.data else None
    return Happened(job.id, JobEvent.FAILURE_SEEN, trouble.message, trouble) if trouble else None


def _overdue(scene: Scene, job: JobRecord, sight: Sight, limits: Limits) -> Happened | None:
    since = scene.starting_since(sight.views)
    if job.state is JobState.STARTING and since is not None and sight.now - since > limits.start_timeout_s:
        error = _not_ready(scene, limits)
        message = error.message
        return Happened(job.id, JobEvent.FAILURE_SEEN, message, error)
    moved_at = max(job.state_since, scene.data.moved_at if scene.data else 0.0)
    if job.state is JobState.STARTING and sight.now - moved_at > limits.pull_timeout_s:
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


def _not_ready(scene: Scene, limits: Limits) -> JobError:
    waited = f"{limits.start_timeout_s:.0f} s"
    if scene.data is not None and not scene.data.ready and scene.assembled:
        message = f"the data sets did not get on for {waited}: {scene.data.told}"
        return JobError(kind=ErrorKind.START, message=message, hint="An admin's `doctor` looks at the nodes.")
    message = f"the tasks were not ready after {waited}"
    return JobError(kind=ErrorKind.START, message=message, hint="Is the machine out of memory?")


# When to look again without being woken: pure.


def next_deadline(world: World, sight: Sight, limits: Limits, isolate: Isolate = together) -> float | None:
    """Return in how many seconds `lifecycle.decide` may say something new without any event, or None."""
    waits: list[float] = []
    for scene in scenes(world, sight, limits, isolate):
        with isolate("timing", scene.gang):
            waits += _gang_waits(scene, sight, limits)
            if scene.job is not None:
                waits += _job_waits(scene, scene.job, sight, limits)
    return max(0.05, min(waits)) if waits else None


def _gang_waits(scene: Scene, sight: Sight, limits: Limits) -> Iterator[float]:
    if scene.gang.job_id is None:
        ends_s = [until - sight.now for until in (scene.idle_until(limits), scene.warm_until(limits))]
        yield min((end_s for end_s in ends_s if end_s > 0), default=0.0)
    for task in scene.tasks:
        if task.state in (TaskState.STARTED, TaskState.READY):
            yield scene.patience_s[task.id] - sight.silence_s.get(task.id, 0.0) + 0.05


def _job_waits(scene: Scene, job: JobRecord, sight: Sight, limits: Limits) -> Iterator[float]:
    now, since = sight.now, scene.starting_since(sight.views)
    if job.state in ENDING:
        patience_s = (limits.end_patience_s(job.state, brings=brings) for brings in (False, True))
        waits_s = [job.state_since + end_s - now + 0.05 for end_s in patience_s]
        yield min((wait_s for wait_s in waits_s if wait_s > 0), default=0.0)
    elif job.state is JobState.STARTING and since is not None:
        patience_s = limits.meet_patience_s if scene.apart else limits.start_timeout_s
        yield since + patience_s - now + 0.05
    elif job.state is JobState.STARTING:
        yield job.state_since + limits.pull_timeout_s - now + 0.05
    elif job.state is JobState.RUNNING and job.spec.timeout_s:
        yield job.state_since + job.spec.timeout_s - now + 0.05
