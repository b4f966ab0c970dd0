"""Sentences on why a job waits, and when it may start."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from math import inf

from minicluster_hub.jobs.records import Wait
from minicluster_hub.jobs.slot_numbers import total
from minicluster_hub.scheduling.allocation.free_slots import FreeSlots, Places
from minicluster_hub.scheduling.base import JobView, Snapshot
from minicluster_hub.scheduling.holders import held_by, server_holder, until

_NONE: Mapping[int, float] = {}
STARTS_NOW, BEING_FREED = "starts now", "its slots are being freed"
"""Reasons of jobs that do not wait for others."""
_SHOWN = 3
"""How many of the jobs ahead of a job are named."""


def explain(
    snapshot: Snapshot, starts: Mapping[int, float] = _NONE, delayed_until: Mapping[int, float] = _NONE
) -> tuple[Wait, ...]:
    """Return a reason for each waiting job, in the order in which they are expected to start.

    starts: the forecast starts, by job. delayed_until: until when jobs wait for better places.
    """
    ordered = sorted(snapshot.waiting, key=lambda job: (starts.get(job.job_id, inf), job.submit_order))
    first = [job.job_id for job in ordered[:_SHOWN]]
    holders = _holders(snapshot)
    lines = (
        (job, index + 1, _reason(job, first[:index], index, delayed_until.get(job.job_id), snapshot, holders))
        for index, job in enumerate(ordered)
    )
    return tuple(
        Wait(job.job_id, position, reason, _expected(job, position, starts, snapshot))
        for job, position, reason in lines
    )


def _reason(
    job: JobView,
    before: list[int],
    count: int,
    delayed_until: float | None,
    snapshot: Snapshot,
    holders: str,
) -> str:
    """Explain one wait. before: the first few of the `count` jobs ahead. holders: who has the slots."""
    fitting = _room(job, snapshot.free)
    if fitting < job.min_replicas:
        return _shortage(job, fitting, snapshot, holders)
    if delayed_until is not None:
        return f"waits for slots that are closer together, {until(delayed_until, snapshot.now)} at the latest"
    if before:
        is_are = "is" if count == 1 else "are"
        return f"waits for {_jobs(before, count)}, which {is_are} ahead of it in the queue"
    if job.awaits_network:
        return "waits some seconds for its network, which has lost a node"
    return BEING_FREED if snapshot.warm else STARTS_NOW


def _expected(job: JobView, position: int, starts: Mapping[int, float], snapshot: Snapshot) -> float | None:
    if job.job_id in starts or position > 1:
        return starts.get(job.job_id)
    return _expected_start(job, snapshot.free, snapshot)


def _shortage(job: JobView, fitting: int, snapshot: Snapshot, holders: str) -> str:
    if not job.one_replica_per_node:
        return _too_few_slots(job, snapshot, holders)
    topology, size = snapshot.topology, job.slots_per_replica
    each = "half a GPU free on" if size < 1 else f"{size:g} free slot{_s(size)}"
    up = sum(topology.has_room(node, size) for node in topology.slots)
    nodes = f"{job.min_replicas} node{_s(job.min_replicas)}"
    needs = f"needs {each} {nodes}" if size < 1 else f"needs {nodes} with {each} each"
    if up < job.min_replicas:
        return f"{needs}; only {up} such node{_s(up)} of the cluster {'is' if up == 1 else 'are'} up"
    return f"{needs}; {fitting} {'is' if fitting == 1 else 'are'} free{holders}"


def _too_few_slots(job: JobView, snapshot: Snapshot, holders: str) -> str:
    needed, free = job.min_replicas * job.slots_per_replica, snapshot.free.count
    has = f"{free:g} {'is' if free == 1 else 'are'} free"
    return f"needs {needed:g} free slot{_s(needed)}; {has}{holders}"


def _holders(snapshot: Snapshot) -> str:
    trains = [job.job_id for job in snapshot.running if not job.serves]
    serves = [job.job_id for job in snapshot.running if job.serves]
    ends = f" until {_jobs(trains[:_SHOWN], len(trains))} end{_verb(trains)}" if trains else ""
    serve = f"{_jobs(serves[:_SHOWN], len(serves))} serve{_verb(serves)}"
    lasts = f"; {serve} a model, without end" if serves else ""
    return f"{ends}{lasts}{_servers(snapshot)}"


def _verb(subjects: list[int]) -> str:
    return "s" if len(subjects) == 1 else ""


def _servers(snapshot: Snapshot) -> str:
    """Say which GPUs notebook servers hold."""
    holders: defaultdict[str, float] = defaultdict(float)
    for server in snapshot.servers:
        holders[server_holder(server, snapshot.now)] += total(server.slots)
    return "".join(f"; {held_by(count, holder)}" for holder, count in holders.items())


def _expected_start(job: JobView, free: FreeSlots, snapshot: Snapshot) -> float | None:
    """Return when enough slots are free if all jobs and servers last to their time limits; None: unknown."""
    free = free.copy()
    for moment, places in sorted(_releases(snapshot), key=lambda release: release[0]):
        if moment == inf:
            return None
        free.add(places)
        if _room(job, free) >= job.min_replicas:
            return moment
    return None


def _releases(snapshot: Snapshot) -> Iterator[tuple[float, Places]]:
    """Yield slots that are held, each with the moment at which they are free at the latest."""
    for job in snapshot.running:
        ends_by = job.ends_by()
        yield inf if ends_by is None else ends_by, job.places
    for server in snapshot.servers:
        yield max(server.until or 0.0, snapshot.now), ((server.node, server.slots),)


def _room(job: JobView, free: FreeSlots) -> int:
    return free.replicas_that_fit(job.slots_per_replica, one_replica_per_node=job.one_replica_per_node)


def _jobs(first: list[int], count: int) -> str:
    shown = ", ".join(str(job_id) for job_id in first)
    more = f" and {count - len(first)} more" if count > len(first) else ""
    return f"job{_s(count)} {shown}{more}"


def _s(count: float) -> str:
    return "" if count == 1 else "s"
