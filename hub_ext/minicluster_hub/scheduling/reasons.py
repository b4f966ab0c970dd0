"""Why a job waits, in words, and when it may start."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from math import inf

from minicluster_hub.jobs.records import Wait
from minicluster_hub.scheduling.allocation.free_slots import FreeSlots, Places
from minicluster_hub.scheduling.base import JobView, Snapshot
from minicluster_hub.scheduling.holders import held_by, server_holder, until

_NONE: Mapping[int, float] = {}
_SHOWN = 3
"""How many of the jobs before one are named."""


def explain(
    snapshot: Snapshot, starts: Mapping[int, float] = _NONE, delayed_until: Mapping[int, float] = _NONE
) -> tuple[Wait, ...]:
    """Return a reason for each waiting job, in the order in which they are expected to start.

    starts: the forecast starts, by job. delayed_until: until when jobs wait for better places.
    """
    ordered = sorted(snapshot.waiting, key=lambda job: (starts.get(job.job_id, inf), job.turn))
    first = [request.job_id for request in ordered[:_SHOWN]]
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
    request: JobView,
    before: list[int],
    count: int,
    delayed_until: float | None,
    snapshot: Snapshot,
    holders: str,
) -> str:
    """Explain one; `before`: the first few of the `count` jobs before it. holders: who has the slots."""
    fitting = _room(request, snapshot.free)
    if fitting < request.min_replicas:
        return _shortage(request, fitting, snapshot, holders)
    if delayed_until is not None:
        return f"waits for slots that are closer together, {until(delayed_until, snapshot.now)} at the latest"
    if before:
        return f"waits for {_jobs(before, count)}, first in the queue"
    if request.settles:
        return "waits some seconds for its network, which has lost a node"
    return "its slots are being freed" if snapshot.warm else "starts now"


def _expected(
    request: JobView, position: int, starts: Mapping[int, float], snapshot: Snapshot
) -> float | None:
    if request.job_id in starts or position > 1:
        return starts.get(request.job_id)
    return _expected_start(request, snapshot.free, snapshot)


def _shortage(request: JobView, fitting: int, snapshot: Snapshot, holders: str) -> str:
    if not request.scatter:
        return _too_few_slots(request, snapshot, holders)
    each = f"{request.slots_per_replica} free slot{_s(request.slots_per_replica)}"
    up = sum(count >= request.slots_per_replica for count in snapshot.topology.slots.values())
    needs = f"needs {request.min_replicas} node{_s(request.min_replicas)} with {each} each"
    if up < request.min_replicas:
        return f"{needs}; only {up} such node{_s(up)} of the cluster {'is' if up == 1 else 'are'} up"
    return f"{needs}; {fitting} {'is' if fitting == 1 else 'are'} free{holders}"


def _too_few_slots(request: JobView, snapshot: Snapshot, holders: str) -> str:
    needed, free = request.min_replicas * request.slots_per_replica, snapshot.free.count
    has = f"{free} {'is' if free == 1 else 'are'} free"
    return f"needs {needed} free slot{_s(needed)}; {has}{holders}"


def _holders(snapshot: Snapshot) -> str:
    holders = [job.job_id for job in snapshot.running]
    ends = f" until {_jobs(holders[:_SHOWN], len(holders))} end{'s' if len(holders) == 1 else ''}"
    return f"{ends if holders else ''}{_servers(snapshot)}"


def _servers(snapshot: Snapshot) -> str:
    """Say which GPUs notebook servers hold."""
    holders: Counter[str] = Counter()
    for server in snapshot.servers:
        holders[server_holder(server, snapshot.now)] += len(server.slots)
    return "".join(f"; {held_by(count, holder)}" for holder, count in holders.items())


def _expected_start(request: JobView, free: FreeSlots, snapshot: Snapshot) -> float | None:
    """Return when enough jobs and servers reach their time limits, None if that is not known."""
    free = free.copy()
    for moment, places in sorted(_releases(snapshot), key=lambda release: release[0]):
        if moment == inf:
            return None
        free.give(places)
        if _room(request, free) >= request.min_replicas:
            return moment
    return None


def _releases(snapshot: Snapshot) -> Iterator[tuple[float, Places]]:
    """Yield when which slots are free at the latest."""
    for job in snapshot.running:
        ends_by = job.ends_by()
        yield inf if ends_by is None else ends_by, job.places
    for server in snapshot.servers:
        yield max(server.until or 0.0, snapshot.now), ((server.node, server.slots),)


def _room(request: JobView, free: FreeSlots) -> int:
    return free.replicas_that_fit(request.slots_per_replica, scatter=request.scatter)


def _jobs(first: list[int], count: int) -> str:
    shown = ", ".join(str(job_id) for job_id in first)
    more = f" and {count - len(first)} more" if count > len(first) else ""
    return f"job{_s(count)} {shown}{more}"


def _s(count: int) -> str:
    return "" if count == 1 else "s"
