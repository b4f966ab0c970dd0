"""What the keepers say of the use of GPUs: kept in memory, said again by itself, worth nothing when old."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from minicluster.wire import KeeperReport
from minicluster_hub.scheduling.idle import GpuUse

FRESH_S = 60.0
"""A keeper speaks each 10 s, whatever happens."""


@dataclass(frozen=True, slots=True)
class _Reading:
    use: GpuUse
    heard_at: float


class GpuReadings:
    """The newest reading of each GPU, by its node and its id."""

    def __init__(self) -> None:
        self._readings: dict[tuple[str, str], _Reading] = {}

    def hear(self, report: KeeperReport, now: float) -> bool:
        """Take what a keeper says; return whether it spoke of GPUs."""
        for node in report.nodes:
            for reading in report.gpus:
                use = GpuUse(now - reading.idle_s, reading.held_bytes)
                self._readings[node, reading.gpu] = _Reading(use, now)
        return bool(report.gpus)

    def use(self, node: str, gpus: Collection[str], now: float) -> GpuUse | None:
        """Return the use of these GPUs of a node together, None unless there is news of each."""
        found = [self._readings.get((node, gpu)) for gpu in gpus]
        fresh = [one.use for one in found if one is not None and now - one.heard_at <= FRESH_S]
        if not gpus or len(fresh) < len(gpus):
            return None
        return GpuUse(max(one.used_at for one in fresh), max(one.held_bytes for one in fresh))
