"""When a plan changes even if nothing happens: the `again_at` of policies."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import inf

from minicluster_hub.scheduling.base import JobView, Snapshot

_LEAST_S = 1.0
"""The shortest time until a policy is asked again: else rounding could repeat the question for ever."""


def soonest(now: float, moments: Iterable[float]) -> float | None:
    """Return the first of the moments that have not passed; None if there is none."""
    coming = min((moment for moment in moments if now <= moment < inf), default=None)
    return None if coming is None else max(coming, now + _LEAST_S)


def become_preemptible(snapshot: Snapshot) -> Iterator[float]:
    """Yield when each protected running job becomes preemptible."""
    yield from (job.not_preemptible_until for job in snapshot.running if not job.is_preemptible(snapshot.now))


def movable(snapshot: Snapshot) -> list[JobView]:
    """Return the running jobs whose places may change; a job that lost a node is handled elsewhere."""
    up = snapshot.free
    return [
        job
        for job in snapshot.running
        if job.is_preemptible(snapshot.now) and all(node in up for node, _ in job.places)
    ]
