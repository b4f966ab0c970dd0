"""Fair shares: what owners are entitled to, what they have used, and whose job is next."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from heapq import heappop, heappush

from minicluster_hub.scheduling.allocation.free_slots import count_slots
from minicluster_hub.scheduling.base import JobView, Snapshot, Usage

_NEW = Usage()


def usage(owner: str, snapshot: Snapshot) -> Usage:
    return snapshot.usage.get(owner, _NEW)


def asked_slots(job: JobView) -> float:
    """Return the slots that a job has; if it waits, those that it needs at least."""
    return count_slots(job.places) or job.min_replicas * job.slots_per_replica


def borrowing(snapshot: Snapshot) -> frozenset[int]:
    """Return the jobs that exceed their owners' shares. Running jobs count first, then waiting ones.

    The slots are divided by weight among the owners who have jobs. An owner's first gang is always within the
    share; otherwise a gang larger than the share would always be a borrower.
    """
    by_owner = _by_owner(snapshot)
    weights = sum(usage(owner, snapshot).weight for owner in by_owner)
    slots = sum(snapshot.topology.slots.values())
    beyond: list[int] = []
    for owner, jobs in by_owner.items():
        share = slots * usage(owner, snapshot).weight / weights
        taken = 0
        for job in jobs:
            if taken and taken + asked_slots(job) > share:
                beyond.append(job.job_id)
            else:
                taken += asked_slots(job)
    return frozenset(beyond)


def standings(snapshot: Snapshot, charged_s: float) -> dict[str, float]:
    """Return each owner's usage divided by the weight; each slot held now adds `charged_s` seconds."""
    held: dict[str, float] = defaultdict(float)
    for job in snapshot.jobs:
        held[job.owner] += count_slots(job.places)
    had = {owner: usage(owner, snapshot) for owner in held}
    return {
        owner: (had[owner].slot_s + slots * charged_s) / had[owner].weight for owner, slots in held.items()
    }


def by_turns(snapshot: Snapshot, standing: Mapping[str, float], charged_s: float) -> Iterator[JobView]:
    """Yield the waiting jobs: always the next one of the owner with the least usage.

    Jobs that were already yielded count as usage of `charged_s` seconds.
    """
    queues: dict[str, list[JobView]] = defaultdict(list)
    for job in sorted(snapshot.waiting, key=lambda job: job.submit_order, reverse=True):
        queues[job.owner].append(job)
    owners: list[tuple[float, tuple[float, int], str]] = []
    for owner, jobs in queues.items():
        heappush(owners, (standing[owner], jobs[-1].submit_order, owner))
    while owners:
        had, _, owner = heappop(owners)
        job = queues[owner].pop()
        yield job
        if queues[owner]:
            had += asked_slots(job) * charged_s / usage(owner, snapshot).weight
            heappush(owners, (had, queues[owner][-1].submit_order, owner))


def _by_owner(snapshot: Snapshot) -> dict[str, list[JobView]]:
    jobs = sorted(snapshot.running, key=lambda job: (job.since, job.submit_order))
    found: dict[str, list[JobView]] = defaultdict(list)
    for job in (*jobs, *sorted(snapshot.waiting, key=lambda job: job.submit_order)):
        found[job.owner].append(job)
    return found
