"""Readings of a machine: what it did since the reading before."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Protocol

from minicluster.machine.system import Counters, SystemFiles
from minicluster.wire import GpuState, MachineReading

log = logging.getLogger("minicluster.machine")
EACH_S = 2.0
"""Time between two readings."""
_LEAST_S = 0.05


class SystemReader(Protocol):
    def read(self) -> Counters: ...


class GpuReader(Protocol):
    def read(self) -> tuple[GpuState, ...]: ...


class MachineReader:
    """gpus: None where there are none. Rates are means since the reading before, so the first has none."""

    def __init__(
        self,
        system: SystemReader | None = None,
        gpus: GpuReader | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._system = system or SystemFiles()
        self._gpus = gpus
        self._clock = clock
        self._before: tuple[float, Counters] | None = None

    def read(self) -> MachineReading | None:
        """Return a reading; None at the first call, and where /proc cannot be read."""
        now = self._clock()
        try:
            counters = self._system.read()
        except (OSError, ValueError, KeyError) as error:
            log.warning("the use of this machine cannot be read: %s", error)
            return None
        before, self._before = self._before, (now, counters)
        if before is None or now - before[0] < _LEAST_S:
            return None
        return _reading(before[1], counters, now - before[0], self._gpus.read() if self._gpus else ())


def _reading(
    before: Counters, counters: Counters, passed_s: float, gpus: tuple[GpuState, ...]
) -> MachineReading:
    busy_cores = max(0.0, counters.busy_s - before.busy_s) / passed_s
    return MachineReading(
        cpu_percent=min(100.0, 100.0 * busy_cores / counters.cores),
        cores=counters.cores,
        memory_bytes=counters.memory_bytes,
        memory_total_bytes=counters.memory_total_bytes,
        # A card that is taken out takes its counter along.
        received_bytes_s=max(0, counters.received_bytes - before.received_bytes) / passed_s,
        sent_bytes_s=max(0, counters.sent_bytes - before.sent_bytes) / passed_s,
        gpus=gpus,
    )
