"""How long each GPU of this node has been idle: asked of NVIDIA's driver every few seconds, without CUDA.

A GPU is in use when a kernel ran on it or its memory in use changed, whoever did it. The driver samples
several times a second whether a kernel ran, and keeps the last seconds of it: a look every few seconds misses
nothing.
"""

from __future__ import annotations

import ctypes
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from minicluster.wire import GpuReading

log = logging.getLogger("minicluster.keeper")
LOOK_S = 5.0
"""The driver keeps at least the last ten seconds."""
_LIBRARY = "libnvidia-ml.so.1"
_SLACK_BYTES = 16 << 20
"""By so much the driver's own part of the memory may differ."""


@dataclass
class _GpuUse:
    """until_us: time of the newest sample on the driver's clock, to ask for later ones."""

    used_at: float
    held_bytes: int
    until_us: int = 0


class GpuMeter:
    """What is known of each GPU. Before the first look, each counts as used. nvml: the module pynvml."""

    def __init__(self, nvml: Any, clock: Callable[[], float] = time.monotonic) -> None:
        nvml.nvmlInit()
        handles = map(nvml.nvmlDeviceGetHandleByIndex, range(nvml.nvmlDeviceGetCount()))
        self.handles = {nvml.nvmlDeviceGetUUID(handle): handle for handle in handles}
        """By the GPUs' ids, as `nvidia-smi -L` prints them."""
        self._nvml = nvml
        self._clock = clock
        self._gpus: dict[str, _GpuUse] = {}

    def look(self) -> None:
        """Ask the driver. A GPU about which it does not answer is unknown, and later counts as used anew."""
        for gpu in self.handles:
            try:
                self._look_at(gpu)
            except self._nvml.NVMLError as error:
                if self._gpus.pop(gpu, None) is not None:
                    log.warning("nothing is known of the use of %s: %s", gpu, error)

    def readings(self) -> tuple[GpuReading, ...]:
        now = self._clock()
        return tuple(
            GpuReading(gpu=name, idle_s=max(0.0, now - gpu.used_at), held_bytes=gpu.held_bytes)
            for name, gpu in list(self._gpus.items())
        )

    def _look_at(self, name: str) -> None:
        gpu, now = self._gpus.get(name), self._clock()
        held_bytes = int(self._nvml.nvmlDeviceGetMemoryInfo(self.handles[name]).used)
        since_us = gpu.until_us if gpu else 0
        samples = self._samples(name, since_us)
        if gpu is None or any(samples.values()) or abs(held_bytes - gpu.held_bytes) > _SLACK_BYTES:
            gpu = _GpuUse(now, held_bytes)
        gpu.until_us = max(samples, default=since_us)
        self._gpus[name] = gpu

    def _samples(self, name: str, since_us: int) -> dict[int, float]:
        """Return by its time each later sample: the percentage of time in which a kernel ran."""
        nvml = self._nvml
        try:
            kind, found = nvml.nvmlDeviceGetSamples(
                self.handles[name], nvml.NVML_GPU_UTILIZATION_SAMPLES, since_us
            )
        except nvml.NVMLError_NotFound:  # No sample is later.
            return {}
        # A sample is a union, which the driver says how to read.
        value = "dVal" if kind == nvml.NVML_VALUE_TYPE_DOUBLE else "uiVal"
        return {it.timeStamp: getattr(it.sampleValue, value) for it in found if it.timeStamp > since_us}


def gpu_meter() -> GpuMeter | None:
    """Return the meter of this node's GPUs, None where the driver shows none."""
    try:
        ctypes.CDLL(_LIBRARY)
        import pynvml  # Of 10 MB: not where there is no driver.

        meter = GpuMeter(pynvml)
    except Exception as error:  # No driver, none for this container, or not of this release.
        log.info("the use of GPUs is not measured here: %s", error)
        return None
    return meter if meter.handles else None
