"""GPU memory in use after its processes ended is reported; nvidia-smi is simulated."""

from __future__ import annotations

from pathlib import Path

import pytest

from minicluster.runtime.node.gpus import GpuMemory

GIVEN = {"MINICLUSTER_GPUS": "1"}

PRETENDED = GIVEN | {"MINICLUSTER_VERIFY_GPUS": "0"}
SHARED = GIVEN | {"MINICLUSTER_GPU_SHARE": "0.5"}


@pytest.fixture
def says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Make nvidia-smi print these lines, one per call, and then always the last one."""
    program, counter = tmp_path / "nvidia-smi", tmp_path / "asked"

    def write(*used_mb: int) -> None:
        lines = "\n".join(f"echo 'GPU-ab-1, {mb}'" if mb >= 0 else "echo broken" for mb in used_mb)
        (tmp_path / "lines").write_text(lines + "\n")
        counter.write_text("0")
        program.write_text(
            f"#!/bin/sh\nasked=$(($(/bin/cat {counter}) + 1))\necho $asked > {counter}\n"
            f"[ $asked -gt {len(used_mb)} ] && asked={len(used_mb)}\n"
            f'eval "$(/bin/sed -n ${{asked}}p {tmp_path}/lines)"\n'
        )
        program.chmod(0o755)

    monkeypatch.setenv("PATH", str(tmp_path))
    return write


async def test_memory_that_comes_back_is_waited_for(says):
    says(10, 9000, 500, 12)
    memory = GpuMemory(GIVEN)
    await memory.remember()
    assert await memory.still_held() == ""


async def test_memory_that_stays_is_told_with_its_gpu(says):
    says(10, 9010)
    memory = GpuMemory(GIVEN)
    await memory.remember()
    assert "9000 MB on GPU-ab-1" in await memory.still_held(wait_s=0.2)


async def test_what_others_held_before_is_theirs(says):
    says(20_000, 20_010)
    memory = GpuMemory(GIVEN)
    await memory.remember()
    assert await memory.still_held() == ""


@pytest.mark.parametrize("environ", [{}, {"MINICLUSTER_GPUS": "0"}, PRETENDED, SHARED])
async def test_without_gpus_nothing_is_asked(says, environ, tmp_path):
    says(10, 9010)
    memory = GpuMemory(environ)
    await memory.remember()
    assert await memory.still_held() == ""
    assert (tmp_path / "asked").read_text() == "0"


async def test_an_nvidia_smi_that_is_not_there_hinders_nothing(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    memory = GpuMemory(GIVEN)
    await memory.remember()
    assert await memory.still_held() == ""
