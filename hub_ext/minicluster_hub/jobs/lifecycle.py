"""Decides what must happen next, from the stored state and the observation. Pure.

`decide` returns named actions; the reconciler carries them out. Each can be repeated.
"""

from __future__ import annotations

from collections.abc import Iterator

from minicluster.wire import ErrorKind, JobError, JobState, RankState
from minicluster_hub.jobs.actions import (
    Action,
    ApplyEvent,
    DataReady,
    EndGang,
    EndLighthouse,
    EndStray,
    EndTask,
    MarkEnded,
    MarkStarted,
    StartLighthouse,
    StartTask,
)
from minicluster_hub.jobs.final_error import final_error
from minicluster_hub.jobs.gang_state import (
    CLEANUP_STATES,
    ClusterState,
    GangState,
    Isolate,
    LifecycleLimits,
    Observation,
    lost_connections,
    no_isolation,
)
from minicluster_hub.jobs.lost_tasks import (
    given_up,
    image_retired,
    lost_task,
    unreached_task,
    unreadable,
    without_unusable,
)
from minicluster_hub.jobs.records import GangTarget, JobRecord, StoredState, TaskState
from minicluster_hub.jobs.states import JobEvent


def decide(
    state: ClusterState, limits: LifecycleLimits, isolate: Isolate = no_isolation
) -> tuple[Action, ...]:
    """Return what must happen next. A gang that causes an exception is skipped; `isolate` handles it."""
    stored, observation = state.stored, state.observation
    known = {task.id for task in stored.tasks}
    actions: list[Action] = [EndStray(task_id) for task_id in observation.views if task_id not in known]
    failures = (unreadable(job) or given_up(job, limits) or image_retired(job, stored) for job in stored.jobs)
    actions += [failure for failure in failures if failure]
    for gang_state in state.gang_states:
        with isolate("deciding for", gang_state.gang):
            actions += tuple(_actions_of(gang_state, observation, limits))
    return (*actions, *_lighthouse_actions(stored, observation))


def _actions_of(gang_state: GangState, observation: Observation, limits: LifecycleLimits) -> Iterator[Action]:
    if gang_state.job is not None and gang_state.job.unreadable:
        return  # `decide` has ended it already, and nothing of its state is certain.
    yield from _task_actions(gang_state, observation)
    if gang_state.job is not None:
        yield from _job_actions(gang_state, gang_state.job, observation, limits)
    yield from _gang_actions(gang_state, observation, limits)


def _lighthouse_actions(stored: StoredState, observation: Observation) -> Iterator[Action]:
    """Keep a lighthouse alive for each gang that is bound to a fault-tolerant job."""
    jobs = {job.id: job for job in stored.jobs}
    wanted = {
        gang.id for gang in stored.gangs if gang.job_id in jobs and jobs[gang.job_id].spec.fault_tolerant
    }
    for gang_id in wanted:
        view = observation.lighthouses.get(gang_id)
        if view is None or not view.alive:
            yield StartLighthouse(gang_id)
    for gang_id in observation.lighthouses.keys() - wanted:
        yield EndLighthouse(gang_id)


def _task_actions(gang_state: GangState, observation: Observation) -> Iterator[Action]:
    for task in gang_state.tasks:
        view = observation.views.get(task.id)
        if task.state is TaskState.ENDED:
            continue
        if gang_state.gang.target is GangTarget.END:
            yield MarkEnded(task) if view is None or view.clean else EndTask(task)
        elif task.state is TaskState.NEW and view is not None and view.alive and not view.starting:
            yield MarkStarted(task)
        elif task.state is TaskState.NEW and view is None:
            yield StartTask(task)


def _gang_actions(
    gang_state: GangState, observation: Observation, limits: LifecycleLimits
) -> Iterator[Action]:
    gang = gang_state.gang
    if gang.target is GangTarget.END:
        return
    if gang.job_id is None:
        idle = gang_state.warm_until(limits) <= observation.now
        if idle or any(task.failure for task in gang_state.tasks):
            yield EndGang(gang.id, "")
            return
    if gang_state.job is None or gang_state.job.state in CLEANUP_STATES or gang_state.tolerates_loss:
        yield from without_unusable(gang_state, observation, limits)


def _job_actions(
    gang_state: GangState, job: JobRecord, observation: Observation, limits: LifecycleLimits
) -> Iterator[Action]:
    if job.state in CLEANUP_STATES:
        loss = lost_task(gang_state, job, observation) if lost_connections(job, gang_state.ranks) else None
        if loss is not None:
            yield loss
        elif gang_state.is_cleaned_up():
            error = final_error(job.error, gang_state.ranks) if job.state is JobState.FAILING else None
            yield ApplyEvent(job.id, JobEvent.ATTEMPT_CLEANED_UP, error=error)
    elif job.state in (JobState.STARTING, JobState.RUNNING):
        if gang_state.data is not None and gang_state.data.ready and job.data_attempt_id != job.attempt_id:
            yield DataReady(job.id, job.attempt_id or 0)
        event = _progress(gang_state, job, observation, limits)
        if event is not None:
            yield event


def _progress(
    gang_state: GangState, job: JobRecord, observation: Observation, limits: LifecycleLimits
) -> ApplyEvent | None:
    """Return the event of a starting or running job that its gang shows; of several, the most serious one."""
    ranks = gang_state.living_ranks
    failed = [rank for rank in ranks if rank.error is not None]
    if failed:
        return ApplyEvent(job.id, JobEvent.FAILURE_SEEN, f"rank {failed[0].rank} failed; ending the others")
    if ranks and all(rank.state is RankState.EXITED for rank in ranks):
        # An agent reports this once it has delivered all; the processes may still give back their memory.
        return ApplyEvent(job.id, JobEvent.RANKS_SUCCEEDED)
    failure = (
        _agents_failure(gang_state, job)
        or lost_task(gang_state, job, observation)
        or _data_failure(gang_state, job)
        or unreached_task(gang_state, job, observation, limits)
        or _overdue(gang_state, job, observation, limits)
    )
    if failure is not None:
        return failure
    started = all(rank.state is not RankState.PENDING for rank in ranks)
    if job.state is JobState.STARTING and started:
        return ApplyEvent(job.id, JobEvent.RANKS_STARTED)
    return None


def _agents_failure(gang_state: GangState, job: JobRecord) -> ApplyEvent | None:
    """Return the failure that an agent reported. In a fault-tolerant attempt the task is dropped instead."""
    task = next((task for task in gang_state.tasks if task.failure is not None), None)
    if task is None or task.failure is None or gang_state.tolerates_loss:
        return None
    error = task.failure.model_copy(update={"node": task.node})
    return ApplyEvent(job.id, JobEvent.FAILURE_SEEN, error.message, error)


def _data_failure(gang_state: GangState, job: JobRecord) -> ApplyEvent | None:
    trouble = gang_state.data.trouble if gang_state.data else None
    return ApplyEvent(job.id, JobEvent.FAILURE_SEEN, trouble.message, trouble) if trouble else None


def _overdue(
    gang_state: GangState, job: JobRecord, observation: Observation, limits: LifecycleLimits
) -> ApplyEvent | None:
    since = gang_state.starting_since(observation.views)
    if (
        job.state is JobState.STARTING
        and since is not None
        and observation.now - since > limits.start_timeout_s
    ):
        error = _not_ready(gang_state, limits)
        return ApplyEvent(job.id, JobEvent.FAILURE_SEEN, error.message, error)
    moved_at = max(job.state_since, gang_state.data.moved_at if gang_state.data else 0.0)
    if job.state is JobState.STARTING and observation.now - moved_at > limits.pull_timeout_s:
        message = f"the nodes did not get the image within {limits.pull_timeout_s / 60:.0f} minutes"
        error = JobError(
            kind=ErrorKind.START, message=message, hint="Ask an admin to run `doctor`: it finds slow links."
        )
        return ApplyEvent(job.id, JobEvent.FAILURE_SEEN, message, error)
    limit = job.spec.timeout_s
    if job.state is JobState.RUNNING and limit and observation.now - job.state_since > limit:
        message = f"the job ran longer than its time limit of {limit:g} s"
        error = JobError(kind=ErrorKind.TIMEOUT, message=message, hint="Give more with --timeout.")
        return ApplyEvent(job.id, JobEvent.FAILURE_SEEN, message, error)
    return None


def _not_ready(gang_state: GangState, limits: LifecycleLimits) -> JobError:
    waited = f"{limits.start_timeout_s:.0f} s"
    if gang_state.data is not None and not gang_state.data.ready and gang_state.assembled:
        message = f"the data sets made no progress for {waited}: {gang_state.data.message}"
        return JobError(
            kind=ErrorKind.START, message=message, hint="Ask an admin to run `doctor`: it checks the nodes."
        )
    message = f"the tasks were not ready after {waited}"
    nodes = ", ".join(sorted({task.node for task in gang_state.tasks}))
    hint = f"Look at the agents' logs on {nodes}; an admin's `doctor` checks memory, image and network."
    return JobError(kind=ErrorKind.START, message=message, hint=hint)


# When to decide again without an event. Pure.


def next_deadline(
    state: ClusterState, limits: LifecycleLimits, isolate: Isolate = no_isolation
) -> float | None:
    """Return after how many seconds `decide` may return something new without any event; None: never."""
    waits: list[float] = []
    for gang_state in state.gang_states:
        with isolate("timing", gang_state.gang):
            waits += _gang_waits(gang_state, state.observation, limits)
            if gang_state.job is not None:
                waits += _job_waits(gang_state, gang_state.job, state.observation, limits)
    return max(0.05, min(waits)) if waits else None


def _gang_waits(gang_state: GangState, observation: Observation, limits: LifecycleLimits) -> Iterator[float]:
    if gang_state.gang.job_id is None:
        ends_s = [
            until - observation.now
            for until in (gang_state.idle_until(limits), gang_state.warm_until(limits))
        ]
        yield min((end_s for end_s in ends_s if end_s > 0), default=0.0)
    for task in gang_state.tasks:
        if task.state in (TaskState.STARTED, TaskState.READY):
            yield gang_state.silence_timeout_s[task.id] - observation.silence_s.get(task.id, 0.0) + 0.05


def _job_waits(
    gang_state: GangState, job: JobRecord, observation: Observation, limits: LifecycleLimits
) -> Iterator[float]:
    now, since = observation.now, gang_state.starting_since(observation.views)
    if job.state in CLEANUP_STATES:
        timeouts_s = (limits.end_timeout_s(job.state, uploading=uploading) for uploading in (False, True))
        waits_s = [job.state_since + timeout_s - now + 0.05 for timeout_s in timeouts_s]
        yield min((wait_s for wait_s in waits_s if wait_s > 0), default=0.0)
    elif job.state is JobState.STARTING and since is not None:
        timeout_s = limits.connectivity_timeout_s if gang_state.unreachable else limits.start_timeout_s
        yield since + timeout_s - now + 0.05
    elif job.state is JobState.STARTING:
        yield job.state_since + limits.pull_timeout_s - now + 0.05
    elif job.state is JobState.RUNNING and job.spec.timeout_s:
        yield job.state_since + job.spec.timeout_s - now + 0.05
