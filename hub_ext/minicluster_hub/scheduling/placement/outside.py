"""Any placement, kept off the slots that a job may not have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from minicluster_hub.scheduling.allocation.free_slots import FreeSlots, Places, common
from minicluster_hub.scheduling.base import ChoosyPlacement, JobView, Placement, Topology


@dataclass(frozen=True, slots=True)
class Outside:
    """`barred`: by job, what it may not have."""

    inner: Placement
    barred: Mapping[int, Places]

    def place(self, job: JobView, chunks: int, free: FreeSlots, topology: Topology) -> Places | None:
        return self.inner.place(job, chunks, self._open_to(job, free), topology)

    def _open_to(self, job: JobView, free: FreeSlots) -> FreeSlots:
        barred = common(self.barred.get(job.job_id, ()), free)
        if not barred:
            return free
        others = free.copy()
        others.take(barred)
        return others


@dataclass(frozen=True, slots=True)
class ChoosyOutside(Outside):
    """One that knows when places are too bad."""

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


def kept_off(placement: Placement, barred: Mapping[int, Places]) -> Placement:
    """Return the placement without what each job may not have."""
    if not barred:
        return placement
    if isinstance(placement, ChoosyPlacement):
        return ChoosyOutside(placement, barred, placement)
    return Outside(placement, barred)
