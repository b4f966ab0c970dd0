"""What each task should be doing, computed from the stored world: pure, and the same after a restart."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from minicluster.wire import JobState, RunOrder, SnapshotRef, StopMode, TaskOrders
from minicluster_hub.jobs.connectivity import store_address
from minicluster_hub.jobs.gang_state import Limits, Scene
from minicluster_hub.jobs.records import GangTarget, JobRecord, TaskRecord, TaskState

_LIMITS = Limits()
_NO_FOLDERS: Mapping[str, str] = {}

_STOP_MODES = {
    JobState.STOPPING: StopMode.INTERRUPT,
    JobState.FAILING: StopMode.ABORT,
    JobState.REQUEUING: StopMode.KILL,
    JobState.YIELDING: StopMode.YIELD,
}


class TaskOver(Exception):
    """The task is to end, or has ended: its agent gets no more orders."""


def orders_for(
    task: TaskRecord,
    scene: Scene,
    *,
    look: int = 0,
    limits: Limits = _LIMITS,
    folders: Mapping[str, str] = _NO_FOLDERS,
) -> TaskOrders:
    """Return the task's orders. Raises TaskOver when its gang is being ended.

    look: see TaskOrders. limits: the cluster's own, for a job that asks for nothing else. folders: see
    RunOrder.data.
    """
    if scene.gang.target is GangTarget.END:
        raise TaskOver(f"task {task.id} is over: its gang {scene.gang.id} is being ended")
    if scene.job is None or scene.job.attempt_id is None:
        return _versioned(None, None)
    joins = scene.tolerates_loss and task.state is TaskState.READY
    meets = scene.lighthouse or not scene.job.spec.fault_tolerant
    if not (scene.assembled or joins) or not meets or _waits_for_data(scene.job):
        return _versioned(None, None)
    run = _run_order(task, scene, scene.job, limits).model_copy(update={"data": dict(folders)})
    return _versioned(run, _STOP_MODES.get(scene.job.state), look)


def _waits_for_data(job: JobRecord) -> bool:
    starts = job.state is JobState.STARTING
    return starts and bool(job.spec.data) and job.data_attempt_id != job.attempt_id


def _run_order(task: TaskRecord, scene: Scene, job: JobRecord, limits: Limits) -> RunOrder:
    first = scene.tasks[0]
    mine = [rank for rank in scene.ranks if rank.task_id == task.id]
    # In the order of their ranks; those that were lost on the way keep their places.
    gang = list(dict.fromkeys(rank.task_id for rank in scene.ranks))
    return RunOrder(
        attempt=job.attempt_id or 0,
        job_id=job.id,
        payload_sha256=job.spec.payload_sha256,
        first_rank=mine[0].rank,
        local_world_size=len(mine),
        world_size=sum(not rank.joined for rank in scene.ranks),
        group_rank=gang.index(task.id),
        group_world_size=len(gang),
        master_addr=first.address,
        master_port=first.store_port or 0,
        restart_count=job.attempts - 1,
        env=job.spec.env,
        quiet_after_s=limits.quiet_after_s if job.spec.quiet_after_s is None else job.spec.quiet_after_s,
        output=limits.output,
        bundle_sha256=job.spec.bundle_sha256,
        parts=job.spec.parts,
        snapshot=_snapshot(scene, job),
        fault_tolerant=job.spec.fault_tolerant,
        lighthouse=scene.lighthouse if job.spec.fault_tolerant else "",
        joins=mine[0].joined,
        lead=scene.living_ranks[0].task_id == task.id if job.spec.fault_tolerant else None,
        peers=tuple(
            store_address(other)
            for other in scene.tasks
            if other.id != task.id and other.state is TaskState.READY
        ),
    )


def _snapshot(scene: Scene, job: JobRecord) -> SnapshotRef | None:
    """Return the newest snapshot that attempts before this one left."""
    before = [one for one in scene.snapshots if one.attempt_id < (job.attempt_id or 0)]
    newest = max(before, key=lambda one: (one.attempt_id, one.step), default=None)
    if newest is None:
        return None
    return SnapshotRef(step=newest.step, attempt=newest.attempt_id, parts=newest.parts)


def _versioned(run: RunOrder | None, stop: StopMode | None, look: int = 0) -> TaskOrders:
    text = f"{run.model_dump_json() if run else ''}|{stop or ''}|{look}"
    return TaskOrders(version=hashlib.sha256(text.encode()).hexdigest()[:16], run=run, stop=stop, look=look)
