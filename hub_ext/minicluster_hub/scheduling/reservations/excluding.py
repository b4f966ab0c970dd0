"""Wraps a placement: a job gets no slots from which a reservation excludes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from minicluster_hub.scheduling.allocation.free_slots import FreeSlots, Places, common
from minicluster_hub.scheduling.base import DelayScheduling, JobView, Placement, Topology


@dataclass(frozen=True, slots=True)
class ExcludingPlacement:
    """excluded: by job id, the slots that the job may not use."""

    inner: Placement
    excluded: Mapping[int, Places]

    def place(self, job: JobView, replicas: int, free: FreeSlots, topology: Topology) -> Places | None:
        return self.inner.place(job, replicas, self._usable_by(job, free), topology)

    def _usable_by(self, job: JobView, free: FreeSlots) -> FreeSlots:
        excluded = common(self.excluded.get(job.job_id, ()), free)
        if not excluded:
            return free
        others = free.copy()
        others.remove(excluded)
        return others


@dataclass(frozen=True, slots=True)
class ExcludingDelayScheduling(ExcludingPlacement):
    """ExcludingPlacement for a placement that delays jobs until better slots are free."""

    delay: DelayScheduling

    def max_delay_s(self, job: JobView, places: Places, topology: Topology) -> float:
        return self.delay.max_delay_s(job, places, topology)

    def better_places(
        self, job: JobView, places: Places, free: FreeSlots, topology: Topology, now: float
    ) -> Places | None:
        others = self._usable_by(job, free)
        others = others.copy() if others is free else others
        others.add(common(places, free))
        return self.delay.better_places(job, places, others, topology, now)


def excluding(placement: Placement, excluded: Mapping[int, Places]) -> Placement:
    """Return the placement without the slots that each job may not use."""
    if not excluded:
        return placement
    if isinstance(placement, DelayScheduling):
        return ExcludingDelayScheduling(placement, excluded, placement)
    return ExcludingPlacement(placement, excluded)
