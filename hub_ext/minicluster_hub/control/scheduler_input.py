"""Builds the scheduler's input: which jobs wait, which run and may be moved, which slots are free."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf

from minicluster.wire import JobState
from minicluster_hub.jobs.gang_state import CLEANUP_STATES
from minicluster_hub.jobs.records import (
    GangRecord,
    GangTarget,
    JobRecord,
    NodeView,
    ServerRecord,
    StoredState,
    TaskRecord,
    TaskState,
)
from minicluster_hub.jobs.slot_numbers import HALF, is_half
from minicluster_hub.scheduling.allocation.free_slots import FreeSlots, Places, common, count_slots
from minicluster_hub.scheduling.base import SERVING_PRIORITY, JobView, Snapshot, Topology, Usage, WarmGang
from minicluster_hub.scheduling.progress_rate import DEFAULT_RESTART_COST_S

COMES_BACK = (JobState.REQUEUING, JobState.YIELDING)
"""States of jobs that will be queued again in a moment. The scheduler counts them as waiting already."""


@dataclass(frozen=True)
class SchedulerFacts:
    """What the scheduler needs beside the stored state.

    unusable: gangs that cannot take a job, since a task is lost. silent_nodes: nodes whose agents are silent,
    though their engine still counts them as up. not_growing: jobs that get no more nodes for now.
    settling: jobs that lost a node a moment ago. min_run_s: for how long a started job is not preempted.
    usage: what each owner has used. consumed: what a job used in earlier attempts, in slot-seconds.
    known: adds to a job the progress rate that its training reported.
    """

    unusable: Collection[int] = ()
    silent_nodes: Collection[str] = ()
    not_growing: Collection[int] = ()
    settling: Collection[int] = ()
    min_run_s: float = 60.0
    usage: Mapping[str, Usage] = field(default_factory=dict)
    consumed: Callable[[int], float] = lambda _: 0.0
    known: Callable[[JobView], JobView] = lambda job: job


def snapshot_of(
    stored: StoredState, nodes: Sequence[NodeView], now: float, facts: SchedulerFacts = SchedulerFacts()
) -> Snapshot:
    """Return the scheduler's snapshot."""
    up = {
        node.name: range(len(node.slot_kinds))
        for node in nodes
        if node.open and node.name not in facts.silent_nodes
    }
    tasks: dict[int, list[TaskRecord]] = {}
    for task in stored.tasks:
        tasks.setdefault(task.gang_id, []).append(task)
    whole_only = frozenset(node.name for node in nodes if node.name in up and node.no_gpu_share)
    free, releasing = FreeSlots(up, whole_only), FreeSlots(dict.fromkeys(up, ()), whole_only)
    _take(free, [(lease.node, lease.slot) for lease in stored.leases])
    ending = _ended_soon(stored)
    releasing.add(_places([task for task in stored.tasks if task.gang_id in ending]))
    warm = tuple(
        gang
        for gang in _warm_gangs(stored, tasks, facts.unusable)
        if all(node in free for node, _ in gang.places)
    )
    for gang in warm:
        free.add(gang.places)
    return Snapshot(
        now=now,
        jobs=tuple(_jobs(stored, tasks, facts)),
        free=free,
        topology=Topology({node: len(slots) for node, slots in up.items()}, whole_only=whole_only),
        warm=warm,
        releasing=releasing,
        servers=tuple(_holding(stored)),
        usage=facts.usage,
        growing=frozenset(_growing(stored, facts.not_growing)),
    )


def _holding(stored: StoredState) -> Iterator[ServerRecord]:
    """Yield the notebook servers that hold slots. The others have released theirs."""
    holders = {lease.server_id for lease in stored.leases}
    return (server for server in stored.servers if server.id in holders)


def _take(free: FreeSlots, held: Sequence[tuple[str, int]]) -> None:
    for node, slot in held:
        free.remove(common(((node, (slot,)),), free))


def _ended_soon(stored: StoredState) -> set[int]:
    """Return the gangs that end or become warm soon, so that their slots can be used."""
    ending = {job.gang_id for job in stored.jobs if job.state in CLEANUP_STATES and job.gang_id is not None}
    return ending | {gang.id for gang in stored.gangs if gang.target is GangTarget.END}


def _growing(stored: StoredState, not_growing: Collection[int]) -> Iterator[int]:
    for job in stored.jobs:
        if job.state is JobState.RUNNING and job.spec.fault_tolerant and job.id not in not_growing:
            yield job.id


def _jobs(
    stored: StoredState, tasks: Mapping[int, list[TaskRecord]], facts: SchedulerFacts
) -> Iterator[JobView]:
    """Yield the jobs that wait and those that hold slots. All others are ending."""
    with_snapshot = {(snapshot.job_id, snapshot.attempt_id) for snapshot in stored.snapshots}
    for job in stored.jobs:
        waits = job.state is JobState.QUEUED or job.state in COMES_BACK
        places = () if waits or job.state in CLEANUP_STATES else _places(tasks.get(job.gang_id or 0, []))
        if waits or places:
            # A snapshot of an earlier attempt is not enough: a job that is moved again and again would not
            # progress.
            has_snapshot = (job.id, job.attempt_id) in with_snapshot
            can_move = has_snapshot or _can_shrink(job, places)
            protected_s = facts.min_run_s if can_move and job.state is JobState.RUNNING else inf
            yield facts.known(_job(job, places, protected_s, facts, has_snapshot=has_snapshot))


def _can_shrink(job: JobRecord, places: Places) -> bool:
    """Whether it may lose nodes without a restart."""
    least = job.spec.replicas.min if job.spec.replicas else 1
    return job.spec.fault_tolerant and count_slots(places) > least * job.spec.slots_per_replica


def _job(
    job: JobRecord, places: Places, protected_s: float, facts: SchedulerFacts, *, has_snapshot: bool
) -> JobView:
    replicas = job.spec.replicas
    limited = job.state in (JobState.QUEUED, JobState.RUNNING, *COMES_BACK)
    return JobView(
        job_id=job.id,
        owner=job.owner,
        submitted_at=job.created_at,
        min_replicas=replicas.min if replicas else 1,
        max_replicas=replicas.max if replicas else 1,
        slots_per_replica=job.spec.slots_per_replica,
        one_replica_per_node=job.spec.slots is None,
        priority=job.spec.priority if job.spec.serve is None else SERVING_PRIORITY,
        places=places,
        since=job.state_since,
        not_preemptible_until=job.state_since + protected_s,
        time_limit_s=job.spec.timeout_s if limited else None,
        image=job.spec.image,
        shm_bytes=job.spec.shm_bytes,
        resumes_gang_id=job.gang_id if job.state is JobState.QUEUED else None,
        awaits_network=job.id in facts.settling,
        consumed_slot_s=facts.consumed(job.id),
        only_shrinks=not has_snapshot,
        model_id=job.spec.serve.model if job.spec.serve is not None else 0,
        starts_at_once=job.state is JobState.QUEUED,
        restart_cost_s=DEFAULT_RESTART_COST_S,
    )


def waiting_view(job: JobRecord, facts: SchedulerFacts = SchedulerFacts()) -> JobView:
    """Return what the scheduler would see of a job that waits."""
    return _job(job, (), inf, facts, has_snapshot=False)


def _warm_gangs(
    stored: StoredState, tasks: Mapping[int, list[TaskRecord]], unusable: Collection[int]
) -> tuple[WarmGang, ...]:
    return tuple(
        WarmGang(
            gang.id,
            gang.owner,
            _places(tasks[gang.id]),
            _slots_per_replica(gang, tasks[gang.id]),
            gang.idle_since or 0.0,
            gang.image,
            gang.shm_bytes,
        )
        for gang in stored.gangs
        if gang.job_id is None
        and gang.target is GangTarget.KEEP
        and gang.id not in unusable
        and all(task.state in _usable_states(gang) for task in tasks[gang.id])
    )


def _usable_states(gang: GangRecord) -> tuple[TaskState, ...]:
    """Return the states of a warm gang's tasks in which it can take a job.

    To one that was prepared its owner's first job can come at any time, as to tasks started for the job.
    """
    return (TaskState.NEW, TaskState.STARTED, TaskState.READY) if gang.prepared else (TaskState.READY,)


def _slots_per_replica(gang: GangRecord, tasks: Sequence[TaskRecord]) -> float:
    """Return the slots of each replica: half a slot, if the gang has halves."""
    shared = any(is_half(slot) for task in tasks for slot in task.slots)
    return HALF if shared else gang.slots_per_node


def _places(tasks: Sequence[TaskRecord]) -> Places:
    return tuple((task.node, task.slots) for task in tasks if task.state is not TaskState.ENDED)
