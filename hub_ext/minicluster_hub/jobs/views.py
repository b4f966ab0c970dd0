"""From records to wire messages: jobs, nodes and placements of notebook servers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass

from minicluster.wire import Job, JobState, Node, NodeList, ServerPlacement, SlotUse, shortened
from minicluster_hub.jobs.records import JobRecord, Lease, NodeView, ServerRecord, StoredState, Wait
from minicluster_hub.jobs.slot_numbers import HALF, halves, is_half, size, slot_of

_BRIEF_CHARS = 500


@dataclass(frozen=True, slots=True)
class IdleGpus:
    """GPUs that a notebook server does not use; see wire.SlotUse.

    held_bytes: GPU memory that the server holds, if it is too much for others to use these GPUs; else 0.
    """

    idle_since: float
    reclaim_at: float | None
    held_bytes: int = 0


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
        queue_position=(wait.position or None) if waiting and wait else None,
        expected_start_at=wait.expected_start_at if waiting and wait else None,
        origin=record.spec.origin,
    )


def brief(job: Job) -> Job:
    """Return a job as lists show it: with the message of its error, without the traceback."""
    if job.error is None:
        return job
    short = {"message": shortened(job.error.message, _BRIEF_CHARS), "traceback": "", "stack": None}
    return job.model_copy(update={"error": job.error.model_copy(update=short)})


def node_list(
    nodes: Sequence[NodeView], stored: StoredState, idle: Mapping[int, IdleGpus], closed: Mapping[str, str]
) -> NodeList:
    """Return the nodes and who holds their slots.

    idle: of notebook servers, by their ids. closed: why nodes take nothing new, by name.
    """
    held: dict[tuple[str, int], dict[int, Lease]] = {}
    for lease in stored.leases:
        held.setdefault((lease.node, slot_of(lease.slot)), {})[lease.slot] = lease
    servers = {server.id: server for server in stored.servers}
    return NodeList(
        nodes=tuple(
            Node(
                name=node.name,
                up=node.up,
                closed=closed.get(node.name, node.closed),
                slots=tuple(
                    _slot_use(number, kind, lease, servers, idle)
                    for slot, kind in enumerate(node.slot_kinds)
                    for number, lease in _parts(slot, held.get((node.name, slot), {}))
                ),
            )
            for node in nodes
        )
    )


def _parts(slot: int, held: Mapping[int, Lease]) -> Iterator[tuple[int, Lease | None]]:
    """Yield a slot with its lease, or, if it is shared, each half with its lease."""
    for number in halves(slot) if any(map(is_half, held)) else (slot,):
        yield number, held.get(number)


def _slot_use(
    number: int,
    kind: str,
    lease: Lease | None,
    servers: Mapping[int, ServerRecord],
    idle: Mapping[int, IdleGpus],
) -> SlotUse:
    use = SlotUse(slot=slot_of(number), share=size(number), kind="gpu" if kind == "gpu" else "cpu")
    if lease is None:
        return use
    use = use.model_copy(update={"owner": lease.owner})
    server = servers.get(lease.server_id or 0)
    if server is None:
        return use.model_copy(update={"job_id": lease.job_id, "warm": lease.warm})
    held = {"server": server.name, "until": server.until}
    return use.model_copy(update=held | (asdict(idle[server.id]) if server.id in idle else {}))


def server_message(record: ServerRecord, home: str | None, now: float) -> ServerPlacement:
    return ServerPlacement(
        id=record.id,
        owner=record.owner,
        server=record.name,
        node=record.node,
        slots=tuple(map(slot_of, record.slots)) if record.reclaimed_at is None else (),
        gpu_share=HALF if any(map(is_half, record.slots)) else None,
        home_node=home,
        until=record.until if record.reclaimed_at is None else None,
        expired=record.reclaimed_at is None and record.until is not None and record.until <= now,
        reclaimed=record.reclaimed_at is not None,
    )
