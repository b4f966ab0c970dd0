"""Any placement, without the slots that a job may not use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from minicluster_hub.scheduling.allocation.free_slots import FreeSlots, Places, common
from minicluster_hub.scheduling.base import ChoosyPlacement, JobView, Placement, Topology


@dataclass(frozen=True, slots=True)
class ExcludingPlacement:
    """excluded: by job, the slots that it may not use."""

    inner: Placement
    excluded: Mapping[int, Places]

    def place(self, job: JobView, replicas: int, free: FreeSlots, topology: Topology) -> Places | None:
        return self.inner.place(job, replicas, self._open_to(job, free), topology)

    def _open_to(self, job: JobView, free: FreeSlots) -> FreeSlots:
        excluded = common(self.excluded.get(job.job_id, ()), free)
        if not excluded:
            return free
        others = free.copy()
        others.take(excluded)
        return others


@dataclass(frozen=True, slots=True)
class ChoosyExcludingPlacement(ExcludingPlacement):
    """The same for a placement that knows when slots are too bad for a gang."""

    choosy: ChoosyPlacement

    def patience_s(self, job: JobView, places: Places, topology: Topology) -> float:
        return self.choosy.patience_s(job, places, topology)

    def better(
        self, job: JobView, places: Places, free: FreeSlots, topology: Topology, now: float
    ) -> Places | None:
        others = self._open_to(job, free)
        others = others.copy() if others is free else others
        others.give(common(places, free))
        return self.choosy.better(job, places, others, topology, now)


def excluding(placement: Placement, excluded: Mapping[int, Places]) -> Placement:
    """Return the placement without the slots that each job may not use."""
    if not excluded:
        return placement
    if isinstance(placement, ChoosyPlacement):
        return ChoosyExcludingPlacement(placement, excluded, placement)
    return ExcludingPlacement(placement, excluded)
