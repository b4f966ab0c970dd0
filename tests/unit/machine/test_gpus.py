"""What the driver says of GPUs, and machines without one. The driver's module is simulated: see Pynvml."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from minicluster.machine import gpus
from minicluster.machine.gpus import find_gpus


class NVMLError(Exception):
    pass


class Pynvml(ModuleType):
    """The functions of the package nvidia-ml-py that are used, for two GPUs; most machines have no driver.

    The second answers as a share of a GPU does: it has no use, no temperature and no power of its own.
    """

    NVMLError = NVMLError
    NVML_TEMPERATURE_GPU = 0

    def __init__(self, *, devices: int = 2, trouble: bool = False) -> None:
        super().__init__("pynvml")
        self.devices = devices
        self.trouble = trouble
        self.lost: set[int] = set()

    def nvmlInit(self) -> None:
        if self.trouble:
            raise NVMLError("Driver Not Loaded")

    def nvmlDeviceGetCount(self) -> int:
        return self.devices

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetUUID(self, handle: int) -> str | bytes:
        return f"GPU-{handle}" if handle else b"GPU-0"

    def nvmlDeviceGetName(self, handle: int) -> str:
        return "RTX 3060"

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> Any:
        if handle in self.lost:
            raise NVMLError("GPU is lost")
        return SimpleNamespace(used=100 + handle, total=1000)

    def nvmlDeviceGetUtilizationRates(self, handle: int) -> Any:
        return self._of_whole(handle, SimpleNamespace(gpu=42, memory=7))

    def nvmlDeviceGetTemperature(self, handle: int, sensor: int) -> Any:
        return self._of_whole(handle, 65)

    def nvmlDeviceGetPowerUsage(self, handle: int) -> Any:
        return self._of_whole(handle, 120_500)

    def nvmlDeviceGetEnforcedPowerLimit(self, handle: int) -> Any:
        return self._of_whole(handle, 170_000)

    def nvmlDeviceGetComputeRunningProcesses(self, handle: int) -> Any:
        process = SimpleNamespace(pid=4711, usedGpuMemory=None if handle else 99)
        return [process]

    def _of_whole(self, handle: int, value: Any) -> Any:
        if handle:
            raise NVMLError("Not Supported")
        return value


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Pynvml:
    module = Pynvml()
    monkeypatch.setitem(sys.modules, "pynvml", module)
    return module


def test_each_gpu_is_read_and_what_the_driver_does_not_tell_is_none(driver: Pynvml) -> None:
    found = find_gpus()
    assert found is not None
    first, second = found.read()
    assert (first.gpu, first.model, first.use_percent) == ("GPU-0", "RTX 3060", 42.0)
    assert (first.memory_bytes, first.memory_total_bytes) == (100, 1000)
    assert (first.temperature_c, first.power_w, first.power_limit_w) == (65.0, 120.5, 170.0)
    assert (second.gpu, second.use_percent, second.temperature_c, second.power_w) == (
        "GPU-1",
        None,
        None,
        None,
    )
    assert second.memory_bytes == 101


def test_a_gpu_that_is_lost_is_left_out(driver: Pynvml) -> None:
    found = find_gpus()
    assert found is not None
    driver.lost.add(0)
    assert [gpu.gpu for gpu in found.read()] == ["GPU-1"]


def test_the_memory_of_processes(driver: Pynvml) -> None:
    found = find_gpus()
    assert found is not None
    assert found.memory_of(["GPU-0", "GPU-1", "GPU-9"]) == {"GPU-0": {4711: 99}, "GPU-1": {4711: 0}}


@pytest.mark.parametrize("module", [None, Pynvml(trouble=True), Pynvml(devices=0)])
def test_without_package_driver_or_gpu_there_is_none(
    module: ModuleType | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", module)
    assert gpus.find_gpus() is None


def test_the_real_package_has_what_is_used() -> None:
    """The simulation has no function that the package lacks."""
    real = pytest.importorskip("pynvml")
    used = {name for name in vars(Pynvml) if name.lower().startswith("nvml")}
    assert {name for name in used if not hasattr(real, name)} == set()
