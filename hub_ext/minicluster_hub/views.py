"""From records to what people see: jobs and nodes as messages, snapshots for the scheduler."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from minicluster.wire import Job, JobState, Node, NodeList, ServerPlace, SlotUse
from minicluster_hub.models import (
    GangTarget,
    JobRecord,
    Lease,
    NodeView,
    ServerRecord,
    TaskRecord,
    TaskState,
    World,
)
from minicluster_hub.scheduling.base import Growth, JobRequest, Places, RunningJob, Snapshot, WarmGang
from minicluster_hub.scheduling.reasons import Wait


def job_message(record: JobRecord, nodes: tuple[str, ...], wait: Wait | None) -> Job:
    waiting = record.state is JobState.QUEUED and wait is not None
    return Job(
        id=record.id,
        owner=record.owner,
        name=record.spec.name,
        state=record.state,
        reason=wait.reason if waiting and wait else record.reason,
        created_at=record.created_at,
        started_at=record.started_at,
        ended_at=record.ended_at,
        attempt=record.attempts,
        world_size=record.world_size,
        nodes=nodes,
        error=record.error,
        result=record.result,
        queue_position=wait.position if waiting and wait else None,
        expected_start_at=wait.expected_start_at if waiting and wait else None,
    )


def node_list(nodes: Sequence[NodeView], world: World) -> NodeList:
    held = {(lease.node, lease.slot): lease for lease in world.leases}
    servers = {server.id: server for server in world.servers}
    return NodeList(
        nodes=tuple(
            Node(
                name=node.name,
                up=node.up,
                slots=tuple(
                    _slot_use(slot, kind, held.get((node.name, slot)), servers)
                    for slot, kind in enumerate(node.slot_kinds)
                ),
            )
            for node in nodes
        )
    )


def _slot_use(slot: int, kind: str, lease: Lease | None, servers: Mapping[int, ServerRecord]) -> SlotUse:
    known = "gpu" if kind == "gpu" else "cpu"
    if lease is None:
        return SlotUse(slot=slot, kind=known)
    server = servers.get(lease.server_id or 0)
    if server is not None:
        return SlotUse(slot=slot, kind=known, owner=lease.owner, server=server.name, until=server.until)
    return SlotUse(slot=slot, kind=known, job_id=lease.job_id, owner=lease.owner, warm=lease.warm)


def snapshot_of(
    world: World,
    nodes: Sequence[NodeView],
    unusable: frozenset[int],
    now: float,
    *,
    away: Collection[str] = (),
    not_growing: Collection[int] = (),
    settling: Collection[int] = (),
) -> Snapshot:
    """Return what the scheduler is told.

    unusable: gangs that cannot take a job (a lost task). away: nodes whose agents are silent, though
    their engine still counts them as up. not_growing: jobs that get no more nodes for now.
    settling: jobs that lost a node a moment ago.
    """
    up = [node for node in nodes if node.up and node.name not in away]
    held = {(lease.node, lease.slot) for lease in world.leases}
    tasks: dict[int, list[TaskRecord]] = {}
    for task in world.tasks:
        tasks.setdefault(task.gang_id, []).append(task)
    return Snapshot(
        now=now,
        waiting=tuple(
            _request(job, settles=job.id in settling) for job in world.jobs if job.state is JobState.QUEUED
        ),
        running=tuple(
            _running(job, tasks) for job in world.jobs if job.state is not JobState.QUEUED and job.gang_id
        ),
        warm=_warm_gangs(world, tasks, unusable),
        slots={node.name: len(node.slot_kinds) for node in up},
        free={
            node.name: tuple(slot for slot in range(len(node.slot_kinds)) if (node.name, slot) not in held)
            for node in up
        },
        servers=tuple(server for server in world.servers if server.slots),
        growing=tuple(_growing(world, tasks, not_growing)),
    )


def _growing(
    world: World, tasks: Mapping[int, list[TaskRecord]], not_growing: Collection[int]
) -> Iterator[Growth]:
    for job in world.jobs:
        if job.state is JobState.RUNNING and job.spec.fault_tolerant and job.id not in not_growing:
            request, on = _request(job), frozenset(task.node for task in tasks.get(job.gang_id or 0, []))
            if len(on) < request.max_nodes:
                yield Growth(request, request.max_nodes - len(on), on)


def server_message(record: ServerRecord, home: str | None, now: float) -> ServerPlace:
    return ServerPlace(
        owner=record.owner,
        server=record.name,
        node=record.node,
        slots=record.slots,
        home_node=home,
        until=record.until,
        expired=record.until is not None and record.until <= now,
    )


def _request(job: JobRecord, *, settles: bool = False) -> JobRequest:
    nodes = job.spec.nodes
    return JobRequest(
        job_id=job.id,
        owner=job.owner,
        min_nodes=nodes.min if nodes else 1,
        max_nodes=nodes.max if nodes else 1,
        slots_per_node=job.spec.slots_per_node,
        submitted_at=job.created_at,
        image=job.spec.image,
        shm_bytes=job.spec.shm_bytes,
        goes_on=job.gang_id,
        settles=settles,
    )


def _running(job: JobRecord, tasks: Mapping[int, list[TaskRecord]]) -> RunningJob:
    limit = job.spec.timeout_s
    ends_by = job.state_since + limit if limit and job.state is JobState.RUNNING else None
    return RunningJob(job.id, job.owner, _places(tasks.get(job.gang_id or 0, [])), ends_by)


def _warm_gangs(
    world: World, tasks: Mapping[int, list[TaskRecord]], unusable: frozenset[int]
) -> tuple[WarmGang, ...]:
    return tuple(
        WarmGang(
            gang.id,
            gang.owner,
            _places(tasks[gang.id]),
            gang.slots_per_node,
            gang.idle_since or 0.0,
            gang.image,
            gang.shm_bytes,
        )
        for gang in world.gangs
        if gang.job_id is None
        and gang.target is GangTarget.KEEP
        and gang.id not in unusable
        and all(task.state is TaskState.READY for task in tasks[gang.id])
    )


def _places(tasks: Sequence[TaskRecord]) -> Places:
    return tuple((task.node, task.slots) for task in tasks if task.state is not TaskState.ENDED)
