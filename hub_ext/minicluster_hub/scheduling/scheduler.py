"""From a snapshot to what is to be done: the policy's order, placed, with warm gangs used first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from minicluster_hub.scheduling.base import (
    FreeSlots,
    Grant,
    Growth,
    JobRequest,
    Placement,
    Places,
    Policy,
    Snapshot,
    WarmGang,
    fitting_nodes,
    give,
    take,
    without,
)


@dataclass(frozen=True, slots=True)
class Admit:
    """Lease these slots for a new gang."""

    job_id: int
    places: Places


@dataclass(frozen=True, slots=True)
class Reuse:
    """Bind a warm gang of the same owner."""

    job_id: int
    gang_id: int


@dataclass(frozen=True, slots=True)
class Extend:
    """Bind a warm gang of the same owner that is too small, and lease these slots for more tasks."""

    job_id: int
    gang_id: int
    places: Places


@dataclass(frozen=True, slots=True)
class Grow:
    """Lease these slots for tasks that join a running job."""

    job_id: int
    places: Places


@dataclass(frozen=True, slots=True)
class Reclaim:
    """End a warm gang: others wait for its slots."""

    gang_id: int


Decision = Admit | Reuse | Extend | Grow | Reclaim


def schedule(snapshot: Snapshot, policy: Policy, placement: Placement) -> tuple[Decision, ...]:
    """Return what to do now. A job that needs warm slots starts when they are free, one tick later."""
    requests = {request.job_id: request for request in snapshot.waiting}
    warm = {gang.gang_id: gang for gang in snapshot.warm}
    free = snapshot.free
    decisions: list[Decision] = []
    grants = policy.plan(snapshot)
    for grant in grants:
        request = requests[grant.job_id]
        if _must_settle(request, warm):
            break  # Nobody overtakes it meanwhile.
        made, free = _place_warm(request, grant, free, warm, placement)
        if not made:
            made, free = _place_new(request, grant, free, warm, placement)
        decisions += made
    if len(grants) == len(snapshot.waiting):
        decisions += _grown(snapshot.growing, free, placement)
    return tuple(decisions)


def _must_settle(request: JobRequest, warm: dict[int, WarmGang]) -> bool:
    left = warm.get(request.goes_on or 0)
    return request.settles and left is not None and len(left.places) < request.min_nodes


def _place_warm(
    request: JobRequest, grant: Grant, free: FreeSlots, warm: dict[int, WarmGang], placement: Placement
) -> tuple[list[Decision], FreeSlots]:
    """Use the owner's warm gang of that size, or the largest smaller one with more nodes added.

    A job that lost a node goes on with the others at once where they are enough for it.
    """
    left = warm.get(request.goes_on or 0)
    if left is not None and len(left.places) >= request.min_nodes:
        del warm[left.gang_id]
        return [Reuse(request.job_id, left.gang_id)], free
    for gang in _fitting_gangs(request, grant, warm):
        missing = grant.nodes - len(gang.places)
        others = without(free, {node for node, _ in gang.places})
        places = placement.place(request, missing, others) if missing else ()
        if places is not None:
            del warm[gang.gang_id]
            ids = request.job_id, gang.gang_id
            return [Extend(*ids, places) if places else Reuse(*ids)], take(free, places)
    return [], free


def _fitting_gangs(request: JobRequest, grant: Grant, warm: dict[int, WarmGang]) -> list[WarmGang]:
    fitting = [
        gang
        for gang in warm.values()
        if gang.owner == request.owner
        and (gang.slots_per_node, gang.image, gang.shm_bytes)
        == (request.slots_per_node, request.image, request.shm_bytes)
        and len(gang.places) <= grant.nodes
    ]
    return sorted(fitting, key=lambda gang: (len(gang.places), gang.idle_since), reverse=True)


def _grown(growing: Sequence[Growth], free: FreeSlots, placement: Placement) -> list[Decision]:
    """Give running jobs that may grow what is free."""
    decisions: list[Decision] = []
    for growth in growing:
        others = without(free, growth.on)
        nodes = min(growth.nodes, fitting_nodes(others, growth.request.slots_per_node))
        places = placement.place(growth.request, nodes, others) if nodes else None
        if places:
            decisions.append(Grow(growth.request.job_id, places))
            free = take(free, places)
    return decisions


def _place_new(
    request: JobRequest, grant: Grant, free: FreeSlots, warm: dict[int, WarmGang], placement: Placement
) -> tuple[list[Decision], FreeSlots]:
    """Place on free slots; failing that, take warm gangs back, the longest idle first."""
    places = placement.place(request, grant.nodes, free)
    if places is not None:
        return [Admit(request.job_id, places)], take(free, places)
    reclaimed: list[WarmGang] = []
    for gang in sorted(warm.values(), key=lambda gang: gang.idle_since):
        reclaimed.append(gang)
        places = placement.place(request, grant.nodes, give(free, reclaimed))
        if places is not None:
            break
    if places is None:
        return [], free
    wanted = {(node, slot) for node, slots in places for slot in slots}
    needed = [gang for gang in reclaimed if wanted & _slots(gang)]
    for gang in needed:
        del warm[gang.gang_id]
    return [Reclaim(gang.gang_id) for gang in needed], take(give(free, needed), places)


def _slots(gang: WarmGang) -> set[tuple[str, int]]:
    return {(node, slot) for node, slots in gang.places for slot in slots}
