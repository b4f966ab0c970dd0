"""Why a job waits, in words, and when it may start."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from minicluster_hub.scheduling.base import (
    FreeSlots,
    JobRequest,
    RunningJob,
    Snapshot,
    WarmGang,
    fitting_nodes,
    give,
)
from minicluster_hub.scheduling.holders import held_by, server_holder

_SHOWN = 3
"""How many of the jobs before one are named."""


@dataclass(frozen=True, slots=True)
class Wait:
    """`expected_start_at` is None where a running job before it has no time limit."""

    job_id: int
    position: int
    reason: str
    expected_start_at: float | None


def explain(snapshot: Snapshot) -> tuple[Wait, ...]:
    """Return a reason for each waiting job, in the order of their arrival."""
    ordered = sorted(snapshot.waiting, key=lambda job: (job.submitted_at, job.job_id))
    free = give(snapshot.free, snapshot.warm)
    first = [request.job_id for request in ordered[:_SHOWN]]
    return tuple(
        _wait(request, index + 1, first[:index], free, snapshot) for index, request in enumerate(ordered)
    )


def _wait(request: JobRequest, position: int, before: list[int], free: FreeSlots, snapshot: Snapshot) -> Wait:
    """Explain one; `before`: the first few of the jobs before it."""
    fitting = fitting_nodes(free, request.slots_per_node)
    expected = None if before else _expected_start(request, free, snapshot)
    if fitting >= request.min_nodes and before:
        reason = f"waits for {_jobs(before, position - 1)}, first in the queue"
    elif fitting >= request.min_nodes and request.settles:
        reason = "waits some seconds for its network, which has lost a node"
    elif fitting >= request.min_nodes:
        reason = "its slots are being freed" if snapshot.warm else "starts now"
    else:
        reason = _shortage(request, fitting, snapshot)
    return Wait(request.job_id, position, reason, expected)


def _shortage(request: JobRequest, fitting: int, snapshot: Snapshot) -> str:
    each = f"{request.slots_per_node} free slot{_s(request.slots_per_node)}"
    up = sum(count >= request.slots_per_node for count in snapshot.slots.values())
    needs = f"needs {request.min_nodes} node{_s(request.min_nodes)} with {each} each"
    if up < request.min_nodes:
        return f"{needs}; only {up} such node{_s(up)} of the cluster {'is' if up == 1 else 'are'} up"
    holders = [job.job_id for job in snapshot.running]
    until = (
        f" until {_jobs(holders[:_SHOWN], len(holders))} end{'s' if len(holders) == 1 else ''}"
        if holders
        else ""
    )
    return f"{needs}; {fitting} {'is' if fitting == 1 else 'are'} free{until}{_servers(snapshot)}"


def _servers(snapshot: Snapshot) -> str:
    """Say which GPUs notebook servers hold."""
    holders: Counter[str] = Counter()
    for server in snapshot.servers:
        holders[server_holder(server, snapshot.now)] += len(server.slots)
    return "".join(f"; {held_by(count, holder)}" for holder, count in holders.items())


def _expected_start(request: JobRequest, free: FreeSlots, snapshot: Snapshot) -> float | None:
    """Return when enough jobs and servers reach their time limits, None if that is not known."""
    servers = [
        RunningJob(0, server.owner, ((server.node, server.slots),), max(server.until or 0.0, snapshot.now))
        for server in snapshot.servers
    ]
    for job in sorted(
        [*snapshot.running, *servers], key=lambda job: (job.ends_by is None, job.ends_by or 0.0)
    ):
        if job.ends_by is None:
            return None
        free = give(free, [WarmGang(0, job.owner, job.places, 0, 0.0)])
        if fitting_nodes(free, request.slots_per_node) >= request.min_nodes:
            return job.ends_by
    return None


def _jobs(first: list[int], count: int) -> str:
    shown = ", ".join(str(job_id) for job_id in first)
    more = f" and {count - len(first)} more" if count > len(first) else ""
    return f"job{_s(count)} {shown}{more}"


def _s(count: int) -> str:
    return "" if count == 1 else "s"
