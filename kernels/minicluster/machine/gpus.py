"""The use of this machine's GPUs, from NVIDIA's driver by its management library (NVML), without CUDA.

Without the driver, or without the package nvidia-ml-py, there are no GPUs here.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable, Collection, Mapping
from typing import Any

from minicluster.wire import GpuState

log = logging.getLogger("minicluster.machine")
_MODEL_CHARS = 100


class Gpus:
    """All GPUs that this process may see, in the driver's order."""

    def __init__(self, nvml: Any) -> None:
        """nvml: the module pynvml, after nvmlInit()."""
        self._nvml = nvml
        handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
        self._handles = {_text(nvml.nvmlDeviceGetUUID(handle)): handle for handle in handles}

    @property
    def ids(self) -> tuple[str, ...]:
        """The ids, as `nvidia-smi -L` prints them."""
        return tuple(self._handles)

    def read(self) -> tuple[GpuState, ...]:
        """Return what each GPU does. One that does not answer is left out."""
        states = (self._state(name, handle) for name, handle in self._handles.items())
        return tuple(state for state in states if state is not None)

    def memory_of(self, gpus: Collection[str]) -> Mapping[str, Mapping[int, int]]:
        """Return the bytes that each process holds on these GPUs, by GPU and process id.

        The driver tells the ids of its own namespace: in a container, they may not be known there.
        """
        return {name: self._memory_of(self._handles[name]) for name in gpus if name in self._handles}

    def _memory_of(self, handle: Any) -> dict[int, int]:
        found = self._value(self._nvml.nvmlDeviceGetComputeRunningProcesses, handle) or ()
        return {int(one.pid): int(one.usedGpuMemory or 0) for one in found}

    def _state(self, name: str, handle: Any) -> GpuState | None:
        nvml, value = self._nvml, self._value
        memory = value(nvml.nvmlDeviceGetMemoryInfo, handle)
        if memory is None:
            return None
        rates = value(nvml.nvmlDeviceGetUtilizationRates, handle)
        power, limit = (
            value(ask, handle) for ask in (nvml.nvmlDeviceGetPowerUsage, nvml.nvmlDeviceGetEnforcedPowerLimit)
        )
        return GpuState(
            gpu=name,
            model=_text(value(nvml.nvmlDeviceGetName, handle) or "")[:_MODEL_CHARS],
            use_percent=None if rates is None else float(rates.gpu),
            memory_bytes=int(memory.used),
            memory_total_bytes=int(memory.total),
            temperature_c=value(nvml.nvmlDeviceGetTemperature, handle, nvml.NVML_TEMPERATURE_GPU),
            power_w=None if power is None else power / 1000,
            power_limit_w=None if limit is None else limit / 1000,
        )

    def _value(self, ask: Callable[..., Any], *arguments: Any) -> Any:
        """Return an answer of the driver; None if this GPU has none (a share of a GPU has no use, say)."""
        try:
            return ask(*arguments)
        except self._nvml.NVMLError:
            return None


def find_gpus() -> Gpus | None:
    """Return this machine's GPUs; None without a driver, without its package, or without a GPU."""
    try:
        nvml = importlib.import_module("pynvml")
    except ImportError:
        return None
    try:
        nvml.nvmlInit()
        gpus = Gpus(nvml)
    except nvml.NVMLError as error:
        log.info("the use of GPUs is not read here: %s", error)
        return None
    return gpus if gpus.ids else None


def _text(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value
