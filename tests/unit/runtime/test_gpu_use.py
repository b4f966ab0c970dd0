"""Since when GPUs are idle; the driver's library is simulated in C."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

import pytest

from minicluster.runtime.node.gpu_use import GpuMeter, Nvml, NvmlError

PLAYED = r"""
typedef struct { unsigned long long at_us, value; } sample;
typedef struct { unsigned long long total, free, used; } memory;
unsigned long long used_bytes = 0, newest_us = 0, percent = 0;
int trouble = 0, devices = 2;

int nvmlInit_v2(void) { return trouble; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = devices; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned number, void **device) {
    *device = (void *)(unsigned long)(number + 1); return 0;
}
int nvmlDeviceGetUUID(void *device, char *name, unsigned size) {
    name[0] = 'G'; name[1] = 'P'; name[2] = 'U'; name[3] = '-'; name[4] = 'a' + (unsigned long)device - 1;
    name[5] = 0; return size < 6;
}
int nvmlDeviceGetMemoryInfo(void *device, memory *found) {
    found->used = device == (void *)1 ? used_bytes : 7; return trouble;
}
int nvmlDeviceGetSamples(void *device, int kind, unsigned long long since_us, int *value_kind,
                         unsigned *count, sample *found) {
    if (trouble) return trouble;
    if (kind != 1) return 2;
    if (device != (void *)1 || newest_us <= since_us) return 6;
    *value_kind = 1;
    *count = 3;
    if (!found) return 0;
    for (int i = 0; i < 2; i++) {
        found[i].at_us = newest_us - 1 + i;
        found[i].value = 0xab00000000 | (i == 0 ? 0 : percent);
    }
    *count = 2;
    return 0;
}
"""
A, B = "GPU-a", "GPU-b"


class Driver:
    """The fake library, and its next answers."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        self._library = ctypes.CDLL(self.path)

    def says(self, **values: int) -> None:
        for name, value in values.items():
            kind = ctypes.c_int if name in ("trouble", "devices") else ctypes.c_ulonglong
            kind.in_dll(self._library, name).value = value


@pytest.fixture
def driver(tmp_path: Path) -> Driver:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler, for the library that is played")
    source, library = tmp_path / "nvml.c", tmp_path / "libnvml.so"
    source.write_text(PLAYED)
    subprocess.run([compiler, "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
    return Driver(library)


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def use(driver: Driver, clock: Clock) -> GpuMeter:
    driver.says(newest_us=50)
    used = GpuMeter(Nvml(driver.path), clock)
    used.measure()
    return used


def idle_s(use: GpuMeter) -> dict[str, float]:
    return {reading.gpu: reading.idle_s for reading in use.readings()}


def test_a_gpu_is_in_use_until_it_was_watched(use: GpuMeter, clock: Clock) -> None:
    assert idle_s(use) == {A: 0.0, B: 0.0}
    clock.now_s += 600
    use.measure()
    assert idle_s(use) == {A: 600.0, B: 600.0}


def test_a_kernel_between_two_looks_is_seen(use: GpuMeter, driver: Driver, clock: Clock) -> None:
    clock.now_s += 600
    driver.says(newest_us=90, percent=3)
    use.measure()
    assert idle_s(use) == {A: 0.0, B: 600.0}
    clock.now_s += 10
    use.measure()
    assert idle_s(use)[A] == 10.0, "the same sample counts once"
    driver.says(newest_us=95, percent=0)
    use.measure()
    assert idle_s(use)[A] == 10.0


def test_data_that_comes_to_a_gpu_or_goes_is_use(use: GpuMeter, driver: Driver, clock: Clock) -> None:
    for used_bytes, expected in ((1 << 20, 60.0), (9 << 30, 0.0), (1 << 30, 0.0), (1 << 30, 60.0)):
        clock.now_s += 60
        driver.says(used_bytes=used_bytes)
        use.measure()
        assert idle_s(use)[A] == expected
    assert {reading.gpu: reading.held_bytes for reading in use.readings()} == {A: 1 << 30, B: 7}


def test_a_gpu_of_which_nothing_is_known_is_not_idle(use: GpuMeter, driver: Driver, clock: Clock) -> None:
    clock.now_s += 600
    driver.says(trouble=15)
    use.measure()
    assert use.readings() == ()
    driver.says(trouble=0)
    use.measure()
    assert idle_s(use) == {A: 0.0, B: 0.0}


def test_no_library_and_no_driver_are_told(driver: Driver, tmp_path: Path) -> None:
    with pytest.raises(NvmlError):
        Nvml(str(tmp_path / "none.so"))
    driver.says(trouble=9)
    with pytest.raises(NvmlError, match="nvmlInit_v2 answers 9"):
        Nvml(driver.path)
