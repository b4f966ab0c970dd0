"""What each task should be doing. It is computed from the stored state: the same after a restart. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from minicluster.wire import JobState, ProfileOrder, RunOrder, SnapshotRef, StopMode, TaskOrders
from minicluster.wire.sessions import CellSignals
from minicluster.wire.training.framework import Framework
from minicluster_hub.jobs.connectivity import store_address
from minicluster_hub.jobs.gang_state import GangState, LifecycleLimits
from minicluster_hub.jobs.records import GangTarget, JobRecord, TaskRecord, TaskState

_LIMITS = LifecycleLimits()
_NO_SIGNALS = CellSignals()
_NO_FOLDERS: Mapping[str, str] = {}

_STOP_MODES = {
    JobState.STOPPING: StopMode.INTERRUPT,
    JobState.FAILING: StopMode.ABORT,
    JobState.REQUEUING: StopMode.KILL,
    JobState.YIELDING: StopMode.YIELD,
}


class TaskEnded(Exception):
    """The task is to end, or has ended: its agent gets no more orders."""


def orders_for(
    task: TaskRecord,
    gang_state: GangState,
    *,
    stack_dump_id: int = 0,
    limits: LifecycleLimits = _LIMITS,
    folders: Mapping[str, str] = _NO_FOLDERS,
    leave: bool = False,
    profile: ProfileOrder | None = None,
    cells: CellSignals = _NO_SIGNALS,
    coming: tuple[str, ...] = (),
    serve_secret: str = "",
) -> TaskOrders:
    """Return the task's orders. Raises TaskEnded when its gang is being ended.

    stack_dump_id: see TaskOrders.look. limits: the cluster's defaults for a job that sets none.
    folders: see RunOrder.data. leave, profile, cells, coming: see TaskOrders. serve_secret: see RunOrder.
    """
    if gang_state.gang.target is GangTarget.END:
        raise TaskEnded(f"task {task.id} is over: its gang {gang_state.gang.id} is being ended")
    if gang_state.job is None or gang_state.job.attempt_id is None:
        return _versioned(None, None, coming=coming)
    joins = gang_state.tolerates_loss and task.state is TaskState.READY
    lighthouse_ready = gang_state.lighthouse or not gang_state.job.spec.fault_tolerant
    if not (gang_state.assembled or joins) or not lighthouse_ready or _waits_for_data(gang_state.job):
        return _versioned(None, None)
    more = {"data": dict(folders), "serve_secret": serve_secret}
    run = _run_order(task, gang_state, gang_state.job, limits).model_copy(update=more)
    stop = _STOP_MODES.get(gang_state.job.state)
    return _versioned(run, stop, stack_dump_id, leave=leave, profile=profile, cells=cells, coming=coming)


def _waits_for_data(job: JobRecord) -> bool:
    starts = job.state is JobState.STARTING
    return starts and bool(job.spec.data) and job.data_attempt_id != job.attempt_id


def _run_order(task: TaskRecord, gang_state: GangState, job: JobRecord, limits: LifecycleLimits) -> RunOrder:
    first = gang_state.tasks[0]
    own_ranks = [rank for rank in gang_state.ranks if rank.task_id == task.id]
    # In the order of their ranks. Lost tasks keep their positions.
    gang = list(dict.fromkeys(rank.task_id for rank in gang_state.ranks))
    return RunOrder(
        attempt=job.attempt_id or 0,
        job_id=job.id,
        payload_sha256=job.spec.payload_sha256,
        first_rank=own_ranks[0].rank,
        local_world_size=len(own_ranks),
        world_size=sum(not rank.joined for rank in gang_state.ranks),
        group_rank=gang.index(task.id),
        group_world_size=len(gang),
        master_addr=first.address,
        master_port=first.store_port or 0,
        restart_count=job.attempts - 1,
        env=job.spec.env,
        seed=job.spec.seed,
        comm=job.spec.comm,
        balance=job.spec.balance,
        quiet_after_s=limits.stall_timeout_s if job.spec.quiet_after_s is None else job.spec.quiet_after_s,
        output=limits.output,
        bundle_sha256=job.spec.bundle_sha256,
        parts=(*job.spec.parts, *_trained_by(job)),
        snapshot=_snapshot(gang_state, job),
        fault_tolerant=job.spec.fault_tolerant,
        lighthouse=gang_state.lighthouse if job.spec.fault_tolerant else "",
        joins=own_ranks[0].joined,
        lead=gang_state.living_ranks[0].task_id == task.id if job.spec.fault_tolerant else None,
        peers=tuple(
            store_address(other)
            for other in gang_state.tasks
            if other.id != task.id and other.state is TaskState.READY
        ),
        trial=job.spec.trial,
        session=job.spec.session,
        framework=job.spec.framework or Framework.TORCH,
        serve=job.spec.serve,
    )


def _trained_by(job: JobRecord) -> tuple[str, ...]:
    """Return the blobs of the job that trained the model which this one serves."""
    serve = job.spec.serve
    return serve.trained_by.blobs if serve is not None and serve.trained_by is not None else ()


def _snapshot(gang_state: GangState, job: JobRecord) -> SnapshotRef | None:
    """Return the newest snapshot of all earlier attempts."""
    before = [one for one in gang_state.snapshots if one.attempt_id < (job.attempt_id or 0)]
    newest = max(before, key=lambda one: (one.attempt_id, one.step), default=None)
    if newest is None:
        return None
    return SnapshotRef(step=newest.step, attempt=newest.attempt_id, parts=newest.parts)


def _versioned(
    run: RunOrder | None,
    stop: StopMode | None,
    stack_dump_id: int = 0,
    *,
    leave: bool = False,
    profile: ProfileOrder | None = None,
    cells: CellSignals = _NO_SIGNALS,
    coming: tuple[str, ...] = (),
) -> TaskOrders:
    profile_id = profile.id if profile else 0
    text = f"{run.model_dump_json() if run else ''}|{stop or ''}|{stack_dump_id}|{leave}|{profile_id}"
    text += f"|{cells.interrupt}|{cells.leave}|{','.join(coming)}"
    version = hashlib.sha256(text.encode()).hexdigest()[:16]
    return TaskOrders(
        version=version,
        run=run,
        stop=stop,
        look=stack_dump_id,
        leave=leave,
        profile=profile,
        cells=cells,
        coming=coming,
    )
