"""Jobs that were, from what is kept of them: who held slots when."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from minicluster_hub.jobs.records import JobRecord, UseRecord
from minicluster_hub.simulator.what_if import PastJob


def past_jobs(records: Iterable[JobRecord], uses: Iterable[UseRecord]) -> Iterator[PastJob]:
    """Yield the jobs that are over and had slots."""
    by_job: dict[int, list[tuple[UseRecord, float]]] = {}
    for use in uses:
        if use.job_id is not None and use.ended_at is not None and use.ended_at > use.began_at:
            by_job.setdefault(use.job_id, []).append((use, use.ended_at))
    for record in records:
        if record.ended_at is not None and record.id in by_job:
            yield _past_job(record, record.ended_at, by_job[record.id])


def _past_job(record: JobRecord, ended_at: float, uses: Sequence[tuple[UseRecord, float]]) -> PastJob:
    """Return one that had a changing number of nodes as if it had had the usual one all the time."""
    spec = record.spec
    least, most = (spec.chunks.min, spec.chunks.max) if spec.chunks else (1, 1)
    chunk_s = sum(use.slots * (end - use.began_at) for use, end in uses) / spec.slots_per_node
    held_s = _union_s([(use.began_at, end) for use, end in uses])
    chunks = max(least, min(most, round(chunk_s / held_s)))
    return PastJob(
        job_id=record.id,
        owner=record.owner,
        submitted_at=record.created_at,
        started_at=min(use.began_at for use, _ in uses),
        ended_at=ended_at,
        ran_s=chunk_s / chunks,
        chunks=chunks,
        least=least,
        most=most,
        chunk_slots=spec.slots_per_node,
        scatter=spec.slots is None,
        priority=spec.priority,
        time_limit_s=spec.timeout_s,
    )


def _union_s(intervals: Sequence[tuple[float, float]]) -> float:
    """Return how long at least one of them lasted."""
    total, reached = 0.0, float("-inf")
    for began_at, ended_at in sorted(intervals):
        total += max(0.0, ended_at - max(began_at, reached))
        reached = max(reached, ended_at)
    return total
