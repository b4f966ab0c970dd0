"""What NVIDIA's driver says of this machine's GPUs, by its own library (NVML). CUDA is not touched.

The driver samples several times a second whether a kernel ran, and keeps the last seconds of it: a look every
few seconds misses nothing. Why not nvidia-ml-py: docs/dependencies.md.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

LIBRARY = "libnvidia-ml.so.1"
_UTILIZATION, _DOUBLE = 1, 0
_NOT_FOUND = 6
_UUID_BYTES = 96


class NvmlError(Exception):
    """The driver does not answer, or refuses this question."""


class _Sample(ctypes.Structure):
    _fields_ = (("at_us", ctypes.c_ulonglong), ("value", ctypes.c_ulonglong))


class _Memory(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_ulonglong) for name in ("total", "free", "used"))


@dataclass(frozen=True, slots=True)
class Samples:
    """busy: whether a kernel ran. until_us: the newest sample, to ask for later ones."""

    busy: bool
    until_us: int


class Nvml:
    """The library, opened. Raises NvmlError where there is none: no driver, or none for this container."""

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
        """Return how much of a GPU's memory is in use, by whomever."""
        memory = _Memory()
        self._call("nvmlDeviceGetMemoryInfo", self._devices[gpu], ctypes.byref(memory))
        return int(memory.used)

    def samples(self, gpu: str, since_us: int) -> Samples:
        """Return what the driver sampled after that moment of its clock."""
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
    """Read a sample: eight bytes of the kind that the driver names; all kinds but one are integers."""
    if kind != _DOUBLE:
        return value & 0xFFFFFFFF
    return ctypes.c_double.from_buffer_copy(ctypes.c_ulonglong(value)).value
