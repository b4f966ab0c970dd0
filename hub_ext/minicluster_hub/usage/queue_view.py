"""A user's view of the queue: why jobs wait, the user's share, and which jobs are ahead.

Of other users' jobs it shows owner, slots and times, but no text that they wrote: no names of jobs, no code,
no options.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from minicluster.wire import Ahead, JobState, MyQueue, QueuedJob, QuotaUse, Share
from minicluster_hub.jobs.records import JobRecord, StoredState, Wait
from minicluster_hub.jobs.slot_numbers import size, total
from minicluster_hub.scheduling.allocation.free_slots import count_slots
from minicluster_hub.scheduling.base import Usage
from minicluster_hub.scheduling.limits import KINDS, Quotas
from minicluster_hub.scheduling.standing import Planned, why_before

HOUR_S = 3600.0
_NEW = Usage()


@dataclass(frozen=True)
class QueueInputs:
    """The data of the view.

    waits: in the order of the queue. usage: by owner. policy: what orders the jobs, by its name.
    gpu_hours: the user's, in the period of quotas. batch_queue: the queue of others orders the jobs.
    """

    now: float
    stored: StoredState
    waits: tuple[Wait, ...]
    planned: Planned
    usage: Mapping[str, Usage]
    quotas: Quotas
    gpu_hours: float
    policy: str
    batch_queue: bool = False


def my_queue(owner: str, inputs: QueueInputs) -> MyQueue:
    """Return one user's view."""
    mine = {job.id: job for job in inputs.stored.jobs if job.owner == owner}
    jobs = tuple(_job(mine[wait.job_id], wait, inputs) for wait in inputs.waits if wait.job_id in mine)
    return MyQueue(
        now=inputs.now,
        policy=inputs.policy,
        jobs=jobs,
        share=_share(owner, inputs),
        before=tuple(_before(jobs[0], inputs)) if jobs else (),
        running=tuple(_running(inputs)),
    )


def _job(record: JobRecord, wait: Wait, inputs: QueueInputs) -> QueuedJob:
    return QueuedJob(
        id=record.id,
        name=record.spec.name,
        position=wait.position,
        reason=wait.reason,
        expected_start_at=wait.expected_start_at,
        latest_start_at=inputs.planned.latest.get(record.id) if wait.expected_start_at is not None else None,
    )


def _before(first: QueuedJob, inputs: QueueInputs) -> Iterator[Ahead]:
    """Yield the jobs of others that are expected to start before the user's first job."""
    waiting = {job.job_id: job for job in inputs.planned.snapshot.waiting}
    mine = waiting.get(first.id)
    for wait in inputs.waits:
        other = waiting.get(wait.job_id)
        if wait.position < first.position and other is not None:
            slots = other.min_replicas * other.slots_per_replica
            why = why_before(other, mine, inputs.planned.snapshot, inputs.policy) if mine is not None else ""
            why = why or "its owner is within the quota, and you are not"
            yield Ahead(owner=other.owner, slots=slots, since=other.since, why=why)


def _running(inputs: QueueInputs) -> Iterator[Ahead]:
    """Yield the jobs and then the notebook servers that hold slots, each in the order of their start."""
    for job in sorted(inputs.planned.snapshot.running, key=lambda job: job.since):
        slots = count_slots(job.places)
        yield Ahead(owner=job.owner, slots=slots, since=job.since, why="a job that runs")
    for server in inputs.planned.snapshot.servers:
        since, slots = server.created_at, total(server.slots)
        yield Ahead(owner=server.owner, slots=slots, since=since, why="a notebook server")


def _share(owner: str, inputs: QueueInputs) -> Share:
    held: defaultdict[str, float] = defaultdict(float)
    for lease in inputs.stored.leases:
        if not lease.warm:
            held[lease.owner] += size(lease.slot)
    weights = {
        name: inputs.usage.get(name, _NEW).weight
        for name in {owner, *(job.owner for job in inputs.stored.jobs)}
    }
    slots = sum(inputs.planned.snapshot.topology.slots.values())
    others = [used.slot_s for name, used in inputs.usage.items() if name != owner and used.slot_s > 0]
    return Share(
        slots=held[owner],
        fair_slots=None if inputs.batch_queue else slots * weights[owner] / sum(weights.values()),
        cluster_slots=slots,
        weight=weights[owner],
        used_slot_hours=inputs.usage.get(owner, _NEW).slot_s / HOUR_S,
        others_slot_hours=sum(others) / len(others) / HOUR_S if others else None,
        quotas=tuple(_quotas(owner, held, inputs)),
    )


def _quotas(owner: str, held: Mapping[str, float], inputs: QueueInputs) -> Iterator[QuotaUse]:
    """Yield the user's own limits, then the common ones of the user's groups."""
    jobs = [job for job in inputs.stored.jobs if job.owner == owner]
    used: dict[str, float] = {
        "slots": held.get(owner, 0),
        "jobs": sum(job.state is not JobState.QUEUED for job in jobs),
        "open_jobs": len(jobs),
        "gpu_hours": inputs.gpu_hours,
        "cpus": held.get(owner, 0) * inputs.quotas.slot_share.cpus,
        "memory_gb": held.get(owner, 0) * inputs.quotas.slot_share.memory_gb,
    }
    for kind, limit in inputs.quotas.of(owner).as_dict().items():
        if kind not in ("slots_together", "storage_gb"):
            yield QuotaUse(kind=kind, limit=limit, used=used.get(kind), summary=KINDS[kind])
    for group, limit in inputs.quotas.together().items():
        if group in inputs.quotas.groups_of(owner):
            slots = sum(count for name, count in held.items() if group in inputs.quotas.groups_of(name))
            summary = f"at once, of all members of {group} together"
            yield QuotaUse(kind="slots_together", limit=limit, used=slots, summary=summary)
