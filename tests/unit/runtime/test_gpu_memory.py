"""GPU memory in use after its processes ended is reported; the driver's module is simulated."""

from __future__ import annotations

import sys
import time
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from minicluster.runtime.node import gpus
from minicluster.runtime.node.gpus import GpuMemory

from ..machine.test_gpus import NVMLError, Pynvml

GIVEN = {"MINICLUSTER_GPUS": "1"}
PRETENDED = GIVEN | {"MINICLUSTER_VERIFY_GPUS": "0"}
SHARED = GIVEN | {"MINICLUSTER_GPU_SHARE": "0.5"}
MB = 1 << 20


class Driver(Pynvml):
    """Says what is in use on the first GPU, an answer for each question, and then always the last one."""

    def __init__(self) -> None:
        super().__init__()
        self.answers_mb = [0]
        self.asked = 0

    def says(self, *used_mb: int) -> None:
        self.answers_mb, self.asked = list(used_mb), 0

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> Any:
        if handle:
            return SimpleNamespace(used=7 * MB, total=100_000 * MB)
        used_mb = self.answers_mb[min(self.asked, len(self.answers_mb) - 1)]
        self.asked += 1
        if used_mb < 0:
            raise NVMLError("GPU is lost")
        return SimpleNamespace(used=used_mb * MB, total=100_000 * MB)


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    module = Driver()
    monkeypatch.setitem(sys.modules, "pynvml", module)
    return module


async def held(memory: GpuMemory, wait_s: float = 5.0) -> str:
    await memory.remember()
    return await memory.still_held(wait_s)


async def test_memory_that_comes_back_is_waited_for(driver: Driver) -> None:
    driver.says(10, 9000, 500, 12)
    assert await held(GpuMemory(GIVEN)) == ""
    assert driver.asked == 4


async def test_memory_that_stays_is_told_with_its_gpu(driver: Driver) -> None:
    driver.says(10, 9010)
    assert "9000 MB on GPU-0" in await held(GpuMemory(GIVEN), wait_s=0.2)


async def test_what_others_held_before_is_theirs(driver: Driver) -> None:
    driver.says(20_000, 20_010)
    assert await held(GpuMemory(GIVEN)) == ""


@pytest.mark.parametrize(
    ("visible", "told"), [("0", True), ("GPU-0,GPU-1", True), ("1", False), ("GPU-1", False)]
)
async def test_only_the_tasks_own_gpus_count(visible: str, told: bool, driver: Driver) -> None:
    driver.says(10, 9010)
    assert bool(await held(GpuMemory({"CUDA_VISIBLE_DEVICES": visible}), wait_s=0.2)) == told


@pytest.mark.parametrize("environ", [{}, {"MINICLUSTER_GPUS": "0"}, PRETENDED, SHARED])
async def test_without_gpus_nothing_is_asked(environ: dict[str, str], driver: Driver) -> None:
    driver.says(10, 9010)
    assert await held(GpuMemory(environ)) == ""
    assert driver.asked == 0


@pytest.mark.parametrize("module", [None, Pynvml(trouble=True)])
async def test_a_driver_that_is_not_there_hinders_nothing(
    module: ModuleType | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", module)
    assert await held(GpuMemory(GIVEN)) == ""


async def test_a_gpu_or_a_driver_that_does_not_answer_hinders_nothing(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver.says(10, -1)
    assert await held(GpuMemory(GIVEN)) == ""
    monkeypatch.setattr(gpus, "_MEMORY_TIMEOUT_S", 0.01)
    monkeypatch.setattr(driver, "nvmlInit", lambda: time.sleep(0.5))
    assert await held(GpuMemory(GIVEN)) == ""
