"""torch.compile in a rank: it writes into its task's folder, in which it finds what earlier ranks compiled.

The folder holds all that torch's compiler writes, and not only what torch.compiler.save_cache_artifacts()
returns: on a CPU, that leaves the compiled kernels out, which are most of the time.
"""

from __future__ import annotations

import hashlib
import os
import platform
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import torch

from minicluster.runtime.agent.files.compiled_files import FOLDER
from minicluster.runtime.rank.imports import after_import

CACHE_DIR, TRITON_CACHE_DIR = "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"
PRECOMPILED_HEADERS = "TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS"
_COMPILER = "torch._inductor.compile_fx"
_WAIT_S = 25.0
"""Longer than the agent takes at most."""
_LOOK_S = 0.01


def prepare(scratch: Path, answer: Path, report: Callable[..., None]) -> None:
    """Have the agent fetch the cache when torch's compiler is imported, which is when a cell first compiles.

    answer: the file that the agent then writes. report: sends an event to the agent. Does nothing if the user
    chose a folder.
    """
    if CACHE_DIR in os.environ:
        return
    folder = scratch / FOLDER
    os.environ[CACHE_DIR] = str(folder)
    os.environ.setdefault(TRITON_CACHE_DIR, str(folder / "triton"))

    def load(_compiler: ModuleType) -> None:
        _leave_headers()
        report("compiles", environment=environment())
        _wait_for(answer)

    after_import(_COMPILER, load)


def _leave_headers() -> None:
    """Leave C++ headers uncompiled: compiled, they have 150 MB, are no part of the cache, and are made even
    if all kernels are there. Whether they are compiled is part of the kernels' names.
    """
    if PRECOMPILED_HEADERS not in os.environ:
        from torch._inductor import config

        config.cpp_cache_precompile_headers = False


def _wait_for(answer: Path) -> None:
    until = time.monotonic() + _WAIT_S
    while not answer.exists() and time.monotonic() < until:
        time.sleep(_LOOK_S)


def environment() -> str:
    """Return the digest of what compiled code depends on and its own names may leave out."""
    gpus = {torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())}
    parts = (
        torch.__version__,
        torch.version.cuda,
        torch.version.hip,
        platform.python_version(),
        platform.machine(),
        *platform.libc_ver(),
        *sorted(_cpu()),
        *sorted(gpus),
    )
    return hashlib.sha256("\n".join(map(str, parts)).encode()).hexdigest()


def _cpu() -> set[str]:
    """Return the model and the instruction sets: kernels are compiled for the machine's own."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return {platform.processor()}
    return {line for line in lines if line.startswith(("model name", "flags", "Features", "CPU part"))}
