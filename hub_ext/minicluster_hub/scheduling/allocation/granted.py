"""Starts jobs where another queue owns the slots: it decides, and this takes exactly what it granted. Pure.

Only slots of warm gangs are the service's own. A job runs at once on a warm gang that suits it; every other
job asks the other queue. Idle warm gangs are given back as soon as a job waits there for slots.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from math import inf

from minicluster_hub.scheduling.allocation.free_slots import FreeSlots, Places
from minicluster_hub.scheduling.base import JobView, Snapshot, WarmGang
from minicluster_hub.scheduling.scheduler import Admit, Decision, Extend, Reclaim, Reuse

_NEVER: Mapping[int, float] = {}
_LEAST_LEFT_S = 30.0
"""What another queue must leave of a gang's time so that a job without a time limit begins there."""


@dataclass(frozen=True, slots=True)
class Need:
    """What a waiting job asks of the other queue. replicas: the fewest and the most.

    rest: the tasks that its gang still has, on other nodes; None: a new gang.
    """

    job: JobView
    replicas: tuple[int, int]
    rest: WarmGang | None = None

    @property
    def without(self) -> tuple[str, ...]:
        """The nodes that it has already."""
        return tuple(node for node, _ in self.rest.places) if self.rest else ()


def owned(snapshot: Snapshot) -> Snapshot:
    """Return the snapshot with only those slots as free that warm gangs hold."""
    free = FreeSlots(dict.fromkeys(snapshot.free.names, ()), snapshot.topology.whole_only)
    for gang in snapshot.warm:
        free.add(gang.places)
    nothing = FreeSlots(dict.fromkeys(snapshot.free.names, ()))
    return replace(snapshot, free=free, releasing=nothing, growing=frozenset())


def reused(snapshot: Snapshot, ends_at: Mapping[int, float] = _NEVER) -> dict[int, WarmGang]:
    """Return the warm gangs on which waiting jobs run at once, each whole: by job, the urgent ones first.

    ends_at: by gang, when the other queue takes its slots back; a longer job does not begin there, nor does
    any job in the last seconds.
    """
    left, found = list(snapshot.warm), dict[int, WarmGang]()
    for job in _in_order(snapshot):
        until = snapshot.now + max(job.time_limit_s or 0.0, _LEAST_LEFT_S)
        lasting = [gang for gang in left if ends_at.get(gang.gang_id, inf) >= until]
        fitting = [gang for gang in lasting if _suits(gang, job)]
        if fitting:
            found[job.job_id] = best = max(fitting, key=lambda gang: (gang.replicas, -gang.idle_since))
            left.remove(best)
    return found


def needs(snapshot: Snapshot, running_on: Mapping[int, WarmGang]) -> list[Need]:
    """Return what the other waiting jobs ask of the other queue, in the order of priority."""
    return [_need(job, snapshot) for job in _in_order(snapshot) if job.job_id not in running_on]


def decisions(
    snapshot: Snapshot,
    running_on: Mapping[int, WarmGang],
    asked: Collection[Need],
    granted: Mapping[int, Places],
    lacking: Collection[int],
) -> Iterator[Decision]:
    """Yield what to do now. granted: by job, what its need got. lacking: jobs that wait there for slots."""
    for job_id, gang in running_on.items():
        yield Reuse(job_id, gang.gang_id)
    for need in asked:
        places = granted.get(need.job.job_id)
        if places and need.rest is not None:
            yield Extend(need.job.job_id, need.rest.gang_id, places)
        elif places:
            yield Admit(need.job.job_id, places)
    if lacking:
        kept = {gang.gang_id for gang in running_on.values()}
        kept |= {need.rest.gang_id for need in asked if need.rest is not None}
        yield from (Reclaim(gang.gang_id) for gang in snapshot.warm if gang.gang_id not in kept)


def _in_order(snapshot: Snapshot) -> list[JobView]:
    ready = (job for job in snapshot.waiting if job.starts_at_once)
    return sorted(ready, key=lambda job: (-job.priority, *job.submit_order))


def _suits(gang: WarmGang, job: JobView) -> bool:
    """Whether a job runs on exactly this gang: on a part of it, slots would be held for nothing."""
    fits = job.min_replicas <= gang.replicas <= job.max_replicas
    return fits and (gang.gang_id == job.resumes_gang_id or gang.suits(job))


def _need(job: JobView, snapshot: Snapshot) -> Need:
    """A job that lost a node asks only for others in its place: the rest has its newest snapshot."""
    rest = next((gang for gang in snapshot.warm if gang.gang_id == job.resumes_gang_id), None)
    if rest is None or not job.one_replica_per_node or rest.replicas >= job.min_replicas:
        return Need(job, (job.min_replicas, job.max_replicas))
    return Need(job, (job.min_replicas - rest.replicas, job.max_replicas - rest.replicas), rest)
