"""Direct copies between GPUs: real processes, real memory; only NVIDIA's driver is played, in C."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import psutil
import pytest

from minicluster_hub.cluster.doctor.gpu_copies import COPY_BYTES, measure_copies

from ...patience import WITHIN_S

PLAYED = r"""
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
typedef unsigned long long ptr;
static int current, init = INIT;
int cuInit(unsigned flags) { if (HANGS == -2) pause(); return init; }
int cuDeviceGetCount(int *count) { *count = 3; return 0; }
int cuDeviceGet(int *device, int ordinal) { *device = 100 + ordinal; return 0; }
int cuDeviceCanAccessPeer(int *can, int device, int peer) { *can = OFFERS; return 0; }
int cuDevicePrimaryCtxRetain(void **context, int device) { *context = (void *)(long)(device - 99); return 0; }
int cuCtxSetCurrent(void *context) { current = (long)context - 1; return 0; }
int cuMemAlloc_v2(ptr *memory, size_t size) { *memory = (ptr)malloc(size); return current == FULL ? 2 : 0; }
int cuMemFree_v2(ptr memory) { free((void *)memory); return 0; }
int cuMemsetD8_v2(ptr memory, unsigned char to, size_t size) { memset((void *)memory, to, size); return 0; }
int cuMemcpyHtoD_v2(ptr memory, void *data, size_t size) { memcpy((void *)memory, data, size); return 0; }
int cuMemcpyDtoH_v2(void *data, ptr memory, size_t size) { memcpy(data, (void *)memory, size); return 0; }
int cuCtxEnablePeerAccess(void *context, unsigned flags) { return 704; }
int cuMemcpyPeer(ptr to, void *target, ptr from, void *source, size_t size) {
    if ((long)target - 1 == HANGS) pause();
    memcpy((void *)to, (void *)from, (long)source - 1 == WRONG ? size - 1 : size);
    return 0;
}
int cuCtxSynchronize(void) { return 0; }
"""
PAIRS = {(source, target) for source in range(3) for target in range(3) if source != target}


def driver(folder: Path, **plays: int) -> str:
    """Compile a driver of three GPUs. WRONG: its copies lack their last byte; HANGS: copies to it hang."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler, for the library that is played")
    source, library = folder / "cuda.c", folder / "libcuda.so.1"
    source.write_text(PLAYED)
    chosen = {"INIT": 0, "OFFERS": 1, "WRONG": -1, "HANGS": -1, "FULL": -1} | plays
    defined = [f"-D{name}={value}" for name, value in chosen.items()]
    subprocess.run([compiler, "-shared", "-fPIC", *defined, "-o", str(library), str(source)], check=True)
    return str(library)


def outcomes(library: str, limit_s: float = WITHIN_S) -> dict[str, set[tuple[int, int]]]:
    found = measure_copies(3, library, limit_s)
    assert found.error == ""
    return {
        outcome: {(one.source, one.target) for one in found.copies if one.outcome == outcome}
        for outcome in {one.outcome for one in found.copies}
    }


def test_each_gpu_copies_to_each_other_one(tmp_path: Path) -> None:
    assert outcomes(driver(tmp_path)) == {"right": PAIRS}


def test_one_lost_byte_is_seen(tmp_path: Path) -> None:
    from_1 = {(1, 0), (1, 2)}
    assert outcomes(driver(tmp_path, WRONG=1)) == {"wrong": from_1, "right": PAIRS - from_1}


def test_a_copy_that_hangs_is_named_and_its_process_is_ended(tmp_path: Path) -> None:
    library = driver(tmp_path, HANGS=2)
    found = outcomes(library, limit_s=3)
    assert found == {"right": {(0, 1)}, "hung": {(0, 2)}}
    assert not [words for words in map(_command_line, psutil.process_iter()) if library in words]


def _command_line(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def test_gpus_that_offer_no_copies_are_left_alone(tmp_path: Path) -> None:
    assert outcomes(driver(tmp_path, OFFERS=0, HANGS=0)) == {"not offered": PAIRS}


def test_a_full_gpu_is_told_with_the_drivers_answer(tmp_path: Path) -> None:
    found = measure_copies(3, driver(tmp_path, FULL=0), WITHIN_S)
    refused = [one for one in found.copies if one.outcome == "refused"]
    assert {(one.source, one.target) for one in refused} == {pair for pair in PAIRS if 0 in pair}
    assert refused[0].words == "cuMemAlloc_v2 answers 2"


@pytest.mark.parametrize(
    ("plays", "words"),
    [({"INIT": 999}, "cuInit answers 999"), ({"HANGS": -2}, "did not within 2 s")],
)
def test_a_driver_that_does_not_start_is_no_wrong_copy(
    plays: dict[str, int], words: str, tmp_path: Path
) -> None:
    found = measure_copies(3, driver(tmp_path, **plays), 2 if "HANGS" in plays else WITHIN_S)
    assert (found.gpus, found.copies) == (3, ()) and words in found.error


def test_without_two_gpus_or_without_a_driver_nothing_is_copied(tmp_path: Path) -> None:
    assert measure_copies(1, str(tmp_path / "none")).error == ""
    assert "cannot open shared object" in measure_copies(2, str(tmp_path / "none")).error
    assert COPY_BYTES > 1 << 20, "more than what a driver hides in one message"
