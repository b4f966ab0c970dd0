"""Slots kept for a job that does not fit yet: others may start before it only if they do not delay it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import inf

from minicluster_hub.scheduling.base import JobView, Snapshot
from minicluster_hub.scheduling.allocation.free_slots import FreeSlots, Places, common
from minicluster_hub.scheduling.placement.filling import fill
from minicluster_hub.scheduling.planning.estimates import latest_end


class Reservation:
    """When a job will fit at the latest (`starts_at`), and what is free then (`later`)."""

    def __init__(self, job: JobView, later: FreeSlots, ends: Iterable[tuple[float, Places]]) -> None:
        """Take the ends of those who hold the slots; `later` is what is free without waiting for any."""
        self._job = job
        self._later = later
        self.starts_at = -inf
        for end, places in sorted(ends):
            if self._fits():
                break
            later.give(places)
            self.starts_at = end

    @property
    def possible(self) -> bool:
        """Whether it fits at all before those end who never do."""
        return self.starts_at < inf and self._fits()

    def kept(self, free: FreeSlots) -> Places:
        """Return what of the job's slots is free already."""
        job = self._job
        places = fill(job, job.min_chunks, self._later, self._later.nodes(job.chunk_slots))
        return common(places or (), free)

    def allows(self, job: JobView, places: Places, now: float) -> bool:
        """Whether a job may start there: it ends before the slots are needed, or leaves enough of them."""
        if latest_end(job, now) <= self.starts_at:
            return True
        self._later.take(places)
        if self._fits():
            return True
        self._later.give(places)
        return False

    def _fits(self) -> bool:
        job = self._job
        return self._later.most_chunks(job.chunk_slots, scatter=job.scatter) >= job.min_chunks


def server_ends(snapshot: Snapshot) -> Iterator[tuple[float, Places]]:
    """Yield when notebook servers give back their slots."""
    for server in snapshot.servers:
        until = inf if server.until is None else max(server.until, snapshot.now)
        yield until, ((server.node, server.slots),)
