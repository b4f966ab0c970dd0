"""How long each GPU of this node has been idle: asked of the driver every few seconds.

A GPU is in use when a kernel ran on it or its memory in use changed, whoever did it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from minicluster.runtime.node.nvml import Nvml, NvmlError
from minicluster.wire import GpuReading

log = logging.getLogger("minicluster.keeper")
LOOK_S = 5.0
"""The driver keeps at least the last ten seconds."""
_SLACK_BYTES = 16 << 20
"""By so much the driver's own part of the memory may differ."""


@dataclass
class _GpuUse:
    used_at: float
    held_bytes: int
    until_us: int = 0


class GpuMeter:
    """What is known of each GPU. Before the first look, each counts as used."""

    def __init__(self, nvml: Nvml, clock: Callable[[], float] = time.monotonic) -> None:
        self._nvml = nvml
        self._clock = clock
        self._gpus: dict[str, _GpuUse] = {}

    def look(self) -> None:
        """Ask the driver. A GPU about which it does not answer is unknown, and later counts as used anew."""
        for gpu in self._nvml.gpus:
            try:
                self._look_at(gpu)
            except NvmlError as error:
                if self._gpus.pop(gpu, None) is not None:
                    log.warning("nothing is known of the use of %s: %s", gpu, error)

    def readings(self) -> tuple[GpuReading, ...]:
        now = self._clock()
        return tuple(
            GpuReading(gpu=name, idle_s=max(0.0, now - gpu.used_at), held_bytes=gpu.held_bytes)
            for name, gpu in list(self._gpus.items())
        )

    def _look_at(self, name: str) -> None:
        now, held_bytes = self._clock(), self._nvml.held_bytes(name)
        gpu = self._gpus.get(name)
        samples = self._nvml.samples(name, gpu.until_us if gpu else 0)
        if gpu is None or samples.busy or abs(held_bytes - gpu.held_bytes) > _SLACK_BYTES:
            gpu = _GpuUse(now, held_bytes)
        gpu.until_us = samples.until_us
        self._gpus[name] = gpu


def gpu_meter() -> GpuMeter | None:
    """Return the meter of this node's GPUs, None where the driver shows none."""
    try:
        nvml = Nvml()
    except (NvmlError, AttributeError) as error:
        log.info("the use of GPUs is not measured here: %s", error)
        return None
    return GpuMeter(nvml) if nvml.gpus else None
