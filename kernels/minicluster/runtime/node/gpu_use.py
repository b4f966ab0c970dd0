"""Measures how long each GPU of this node has been idle, by reading the driver every few seconds.

A GPU is in use if any process ran a kernel on it or changed its memory in use.
"""

from __future__ import annotations

import ctypes
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from minicluster.wire import GpuReading

log = logging.getLogger("minicluster.data_agent")
LOOK_S = 5.0
"""The driver stores samples of at least the last ten seconds."""
_SLACK_BYTES = 16 << 20
"""The driver's own memory use varies by up to this."""


@dataclass
class _GpuUse:
    used_at: float
    held_bytes: int
    until_us: int = 0


class GpuMeter:
    """The readings of each GPU. Before its first reading, a GPU counts as used."""

    def __init__(self, nvml: Nvml, clock: Callable[[], float] = time.monotonic) -> None:
        self._nvml = nvml
        self._clock = clock
        self._gpus: dict[str, _GpuUse] = {}

    def measure(self) -> None:
        """Read the driver. A GPU without an answer is unknown; once it answers again, it counts as used."""
        for gpu in self._nvml.gpus:
            try:
                self._measure(gpu)
            except NvmlError as error:
                if self._gpus.pop(gpu, None) is not None:
                    log.warning("nothing is known of the use of %s: %s", gpu, error)

    def readings(self) -> tuple[GpuReading, ...]:
        now = self._clock()
        return tuple(
            GpuReading(gpu=name, idle_s=max(0.0, now - gpu.used_at), held_bytes=gpu.held_bytes)
            for name, gpu in list(self._gpus.items())
        )

    def _measure(self, name: str) -> None:
        now, held_bytes = self._clock(), self._nvml.held_bytes(name)
        gpu = self._gpus.get(name)
        samples = self._nvml.samples(name, gpu.until_us if gpu else 0)
        if gpu is None or samples.busy or abs(held_bytes - gpu.held_bytes) > _SLACK_BYTES:
            gpu = _GpuUse(now, held_bytes)
        gpu.until_us = samples.until_us
        self._gpus[name] = gpu


def gpu_meter() -> GpuMeter | None:
    """Return the meter of this node's GPUs; None if the driver shows none."""
    try:
        nvml = Nvml()
    except (NvmlError, AttributeError) as error:
        log.info("the use of GPUs is not measured here: %s", error)
        return None
    return GpuMeter(nvml) if nvml.gpus else None


# Reads NVIDIA's driver by its management library (NVML), without CUDA.


LIBRARY = "libnvidia-ml.so.1"
_UTILIZATION, _DOUBLE = 1, 0
_NOT_FOUND = 6
_UUID_BYTES = 96


class NvmlError(Exception):
    """The driver does not answer, or refuses the call."""


class _Sample(ctypes.Structure):
    _fields_ = (("at_us", ctypes.c_ulonglong), ("value", ctypes.c_ulonglong))


class _Memory(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_ulonglong) for name in ("total", "free", "used"))


@dataclass(frozen=True, slots=True)
class Samples:
    """busy: whether a kernel ran. until_us: time of the newest sample; pass it to get later ones."""

    busy: bool
    until_us: int


class Nvml:
    """The loaded library. Raises NvmlError if the machine has no driver or this container cannot use it."""

    def __init__(self, library: str = LIBRARY) -> None:
        try:
            self._library: Any = ctypes.CDLL(library)
        except OSError as error:
            raise NvmlError(str(error)) from error
        self._call("nvmlInit_v2")
        self._devices = dict(self._device(number) for number in range(self._count()))

    @property
    def gpus(self) -> tuple[str, ...]:
        """The ids of the GPUs, as `nvidia-smi -L` prints them."""
        return tuple(self._devices)

    def held_bytes(self, gpu: str) -> int:
        """Return a GPU's memory in use, by all processes."""
        memory = _Memory()
        self._call("nvmlDeviceGetMemoryInfo", self._devices[gpu], ctypes.byref(memory))
        return int(memory.used)

    def samples(self, gpu: str, since_us: int) -> Samples:
        """Return the driver's samples after this time on the driver's clock."""
        kind, count = ctypes.c_int(), ctypes.c_uint(0)
        asked = (self._devices[gpu], _UTILIZATION, ctypes.c_ulonglong(since_us), ctypes.byref(kind))
        if not self._found("nvmlDeviceGetSamples", *asked, ctypes.byref(count), None) or not count.value:
            return Samples(busy=False, until_us=since_us)
        found = (_Sample * count.value)()
        if not self._found("nvmlDeviceGetSamples", *asked, ctypes.byref(count), found):
            return Samples(busy=False, until_us=since_us)
        new = [sample for sample in found[: count.value] if sample.at_us > since_us]
        busy = any(_percent(sample.value, kind.value) > 0 for sample in new)
        return Samples(busy, max((sample.at_us for sample in new), default=since_us))

    def _count(self) -> int:
        count = ctypes.c_uint()
        self._call("nvmlDeviceGetCount_v2", ctypes.byref(count))
        return count.value

    def _device(self, number: int) -> tuple[str, ctypes.c_void_p]:
        device, name = ctypes.c_void_p(), ctypes.create_string_buffer(_UUID_BYTES)
        self._call("nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(number), ctypes.byref(device))
        self._call("nvmlDeviceGetUUID", device, name, ctypes.c_uint(_UUID_BYTES))
        return name.value.decode(), device

    def _found(self, function: str, *arguments: Any) -> bool:
        code = getattr(self._library, function)(*arguments)
        if code not in (0, _NOT_FOUND):
            raise NvmlError(f"{function} answers {code}")
        return code == 0

    def _call(self, function: str, *arguments: Any) -> None:
        if not self._found(function, *arguments):
            raise NvmlError(f"{function} answers {_NOT_FOUND}")


def _percent(value: int, kind: int) -> float:
    """Decode a sample: eight bytes of the driver's value type; all types but one are integers."""
    if kind != _DOUBLE:
        return value & 0xFFFFFFFF
    return ctypes.c_double.from_buffer_copy(ctypes.c_ulonglong(value)).value
