"""Taking slots for jobs while a plan is made: what policies have in common."""

from __future__ import annotations

from collections.abc import Iterable

from minicluster_hub.scheduling.allocation.free_slots import FreeSlots
from minicluster_hub.scheduling.base import Grant, JobView
from minicluster_hub.scheduling.placement.filling import fill


def as_they_are(running: Iterable[JobView]) -> list[Grant]:
    """Let jobs keep what they have."""
    return [Grant(job.job_id, job.chunks) for job in running]


def most(job: JobView, free: FreeSlots) -> int:
    """Return how many chunks a job can get, 0 if they are fewer than its minimum."""
    chunks = min(job.max_chunks, free.most_chunks(job.chunk_slots, scatter=job.scatter))
    return chunks if chunks >= job.min_chunks else 0


def start_now(job: JobView, free: FreeSlots) -> Grant | None:
    """Take the most that a waiting job can get from `free`; None if that is not enough."""
    chunks = most(job, free)
    return take(job, chunks, free) if chunks else None


def take(job: JobView, chunks: int, free: FreeSlots) -> Grant | None:
    """Take that many chunks from `free`, on the fullest nodes; None if they are not there."""
    places = fill(job, chunks, free, free.nodes(job.chunk_slots))
    if places is None:
        return None
    free.take(places)
    return Grant(job.job_id, chunks)
