"""Why somebody waits, what their share is and who is before them, put together from what the service knows.

Of others it takes owner, slots and times, nothing that they wrote: no names of jobs, no code, no settings.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from minicluster.wire import Ahead, JobState, MyQueue, QueuedJob, QuotaUse, Share
from minicluster_hub.jobs.records import JobRecord, Wait, World
from minicluster_hub.scheduling.base import Usage
from minicluster_hub.scheduling.limits import KINDS, Quotas
from minicluster_hub.scheduling.standing import Planned, why_before

HOUR_S = 3600.0
_NEW = Usage()


@dataclass(frozen=True)
class Known:
    """What the answer is made from.

    waits: in their order. usage: of owners.
    gpu_hours: one's own in the period of quotas. policy: its name.
    """

    now: float
    world: World
    waits: tuple[Wait, ...]
    planned: Planned
    usage: Mapping[str, Usage]
    quotas: Quotas
    gpu_hours: float
    policy: str


def my_queue(owner: str, known: Known) -> MyQueue:
    """Return the answer for one owner."""
    mine = {job.id: job for job in known.world.jobs if job.owner == owner}
    jobs = tuple(_job(mine[wait.job_id], wait, known) for wait in known.waits if wait.job_id in mine)
    return MyQueue(
        now=known.now,
        policy=known.policy,
        jobs=jobs,
        share=_share(owner, known),
        before=tuple(_before(jobs[0], known)) if jobs else (),
        running=tuple(_running(known)),
    )


def _job(record: JobRecord, wait: Wait, known: Known) -> QueuedJob:
    return QueuedJob(
        id=record.id,
        name=record.spec.name,
        position=wait.position,
        reason=wait.reason,
        expected_start_at=wait.expected_start_at,
        latest_start_at=known.planned.latest.get(record.id) if wait.expected_start_at is not None else None,
    )


def _before(first: QueuedJob, known: Known) -> Iterator[Ahead]:
    """Yield those who are expected to start before the first of one's own jobs."""
    waiting = {job.job_id: job for job in known.planned.snapshot.waiting}
    mine = waiting.get(first.id)
    for wait in known.waits:
        other = waiting.get(wait.job_id)
        if wait.position < first.position and other is not None:
            slots = other.min_chunks * other.chunk_slots
            why = why_before(other, mine, known.planned.snapshot, known.policy) if mine is not None else ""
            why = why or "within its owner's quota, which yours is not"
            yield Ahead(owner=other.owner, slots=slots, since=other.since, why=why)


def _running(known: Known) -> Iterator[Ahead]:
    """Yield who holds slots by jobs, then who does by notebook servers, each in the order of their begin."""
    for job in sorted(known.planned.snapshot.running, key=lambda job: job.since):
        slots = sum(len(numbers) for _, numbers in job.places)
        yield Ahead(owner=job.owner, slots=slots, since=job.since, why="a job that runs")
    for server in known.planned.snapshot.servers:
        since, slots = server.created_at, len(server.slots)
        yield Ahead(owner=server.owner, slots=slots, since=since, why="a notebook server")


def _share(owner: str, known: Known) -> Share:
    held = Counter(lease.owner for lease in known.world.leases if not lease.warm)
    weights = {
        name: known.usage.get(name, _NEW).weight for name in {owner, *(job.owner for job in known.world.jobs)}
    }
    slots = sum(known.planned.snapshot.topology.slots.values())
    others = [used.slot_s for name, used in known.usage.items() if name != owner and used.slot_s > 0]
    return Share(
        slots=held[owner],
        fair_slots=slots * weights[owner] / sum(weights.values()),
        cluster_slots=slots,
        weight=weights[owner],
        used_slot_hours=known.usage.get(owner, _NEW).slot_s / HOUR_S,
        others_slot_hours=sum(others) / len(others) / HOUR_S if others else None,
        quotas=tuple(_quotas(owner, held, known)),
    )


def _quotas(owner: str, held: Mapping[str, int], known: Known) -> Iterator[QuotaUse]:
    """Yield one's own limits, then those of one's groups together."""
    jobs = [job for job in known.world.jobs if job.owner == owner]
    used: dict[str, float] = {
        "slots": held.get(owner, 0),
        "jobs": sum(job.state is not JobState.QUEUED for job in jobs),
        "open_jobs": len(jobs),
        "gpu_hours": known.gpu_hours,
        "cpus": held.get(owner, 0) * known.quotas.slot_share.cpus,
        "memory_gb": held.get(owner, 0) * known.quotas.slot_share.memory_gb,
    }
    for kind, limit in known.quotas.of(owner).told().items():
        if kind not in ("slots_together", "storage_gb"):
            yield QuotaUse(kind=kind, limit=limit, used=used.get(kind), summary=KINDS[kind])
    for group, limit in known.quotas.together().items():
        if group in known.quotas.groups_of(owner):
            slots = sum(_held_by(group, held.items(), known.quotas))
            summary = f"at once, of all members of {group} together"
            yield QuotaUse(kind="slots_together", limit=limit, used=slots, summary=summary)


def _held_by(group: str, held: Iterable[tuple[str, int]], quotas: Quotas) -> Iterator[int]:
    return (slots for name, slots in held if group in quotas.groups_of(name))
