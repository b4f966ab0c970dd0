"""When a plan would change though nothing happens: what policies answer as `again_at`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import inf

from minicluster_hub.scheduling.base import JobView, Snapshot

_LEAST_S = 1.0
"""A moment is at least so far off: else rounding could ask again at once, for ever."""


def soonest(now: float, moments: Iterable[float]) -> float | None:
    """Return the first of the moments that have not passed, None if there is none."""
    coming = min((moment for moment in moments if now <= moment < inf), default=None)
    return None if coming is None else max(coming, now + _LEAST_S)


def released(snapshot: Snapshot) -> Iterator[float]:
    """Yield when running jobs may be moved that may not yet."""
    yield from (job.steady_until for job in snapshot.running if job.fixed(snapshot.now))


def movable(snapshot: Snapshot) -> list[JobView]:
    """Return the running jobs whose places may change; one that lost a node is another's business."""
    up = snapshot.free
    return [
        job
        for job in snapshot.running
        if not job.fixed(snapshot.now) and all(node in up for node, _ in job.places)
    ]
