"""From a snapshot to what is to be done: the policy's order, placed, with warm gangs used first."""

from __future__ import annotations

from dataclasses import dataclass

from minicluster_hub.scheduling.base import (
    FreeSlots,
    Grant,
    JobRequest,
    Placement,
    Places,
    Policy,
    Snapshot,
    WarmGang,
    give,
    take,
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
class Reclaim:
    """End a warm gang: others wait for its slots."""

    gang_id: int


Decision = Admit | Reuse | Reclaim


def schedule(snapshot: Snapshot, policy: Policy, placement: Placement) -> tuple[Decision, ...]:
    """Return what to do now. A job that needs warm slots starts when they are free, one tick later."""
    requests = {request.job_id: request for request in snapshot.waiting}
    warm = {gang.gang_id: gang for gang in snapshot.warm}
    free = snapshot.free
    decisions: list[Decision] = []
    for grant in policy.plan(snapshot):
        request = requests[grant.job_id]
        gang = _fitting_gang(request, grant, warm)
        if gang is not None:
            del warm[gang.gang_id]
            decisions.append(Reuse(grant.job_id, gang.gang_id))
            continue
        made, free = _place_new(request, grant, free, warm, placement)
        decisions += made
    return tuple(decisions)


def _fitting_gang(request: JobRequest, grant: Grant, warm: dict[int, WarmGang]) -> WarmGang | None:
    fitting = [
        gang
        for gang in warm.values()
        if gang.owner == request.owner
        and (gang.slots_per_node, gang.image, gang.shm_bytes)
        == (request.slots_per_node, request.image, request.shm_bytes)
        and len(gang.places) == grant.nodes
    ]
    return max(fitting, key=lambda gang: gang.idle_since, default=None)


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
