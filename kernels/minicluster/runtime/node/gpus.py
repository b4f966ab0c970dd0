"""Checks by nvidia-smi that a task sees its assigned GPUs, and reads their memory in use by NVML.

NVIDIA's container toolkit puts nvidia-smi into the container. CUDA is not used. For a task without GPUs,
nothing is run.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TypeVar

from minicluster.machine.gpus import Gpus, find_gpus
from minicluster.wire.machines.gpu_share import SHARE_VARIABLE

T = TypeVar("T")

_ASSIGNED = "DOCKER_RESOURCE_GPU"
_VERIFY = "MINICLUSTER_VERIFY_GPUS"
"""0: the assigned GPUs are simulated. count: only their number is known. never: they are not looked at."""
_LIST_TIMEOUT_S = 20.0
_MEMORY_TIMEOUT_S = 5.0
_SLACK_MB = 64
"""The driver's own memory use varies by up to this."""
_RELEASE_TIMEOUT_S = 5.0
_PAUSE_S = 0.1


async def trouble(environ: Mapping[str, str] = os.environ) -> str:
    """Return a message if the GPUs differ from those that the engine requested; else ""."""
    wanted, how = int(environ.get("MINICLUSTER_GPUS") or 0), environ.get(_VERIFY, "")
    if not wanted or how == "never":
        return ""
    assigned = [name for name in environ.get(_ASSIGNED, "").split(",") if name]
    if how == "0":
        return difference(wanted, assigned, assigned)
    try:
        listed = await _nvidia_smi("-L", timeout_s=_LIST_TIMEOUT_S)
    except (OSError, TimeoutError) as error:
        return f"{wanted} GPUs are assigned, and nvidia-smi does not tell which are there ({error})"
    seen = re.findall(r"UUID: (GPU-[0-9a-f-]+)", listed)
    return difference(wanted, [""] * wanted if how == "count" else assigned, seen)


def difference(wanted: int, assigned: Sequence[str], seen: Collection[str]) -> str:
    """Compare the ids that Swarm assigned with the visible ones. If they are not UUIDs, compare the count."""
    if len(assigned) != wanted:
        return (
            f"{wanted} GPUs were asked for, Swarm assigned {len(assigned)} ({', '.join(assigned) or 'none'})"
        )
    if len(seen) != wanted:
        return f"{wanted} GPUs are assigned, the container sees {len(seen)} ({', '.join(seen) or 'none'})"
    if all(name.startswith("GPU-") for name in assigned) and set(assigned) != set(seen):
        return f"the GPUs {', '.join(assigned)} are assigned, the container sees {', '.join(seen)}"
    return ""


class GpuMemory:
    """The memory in use before an attempt, in MB, of each GPU that this task may use.

    By NVML: a warm cell waits for it, and to start nvidia-smi may take tenths of a second.
    """

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        pretended = environ.get(_VERIFY) in ("0", "never")
        self._visible = [name for name in environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
        given = environ.get("MINICLUSTER_GPUS", "0") not in ("", "0") or self._visible
        # Of a shared GPU, nobody can tell whose memory it is.
        self._has_gpus = bool(given) and not pretended and not environ.get(SHARE_VARIABLE)
        self._gpus: Gpus | None = None
        self._before: dict[str, int] = {}

    async def remember(self) -> None:
        """Read the memory before the first rank starts."""
        self._gpus = await _within_limit(find_gpus) if self._has_gpus else None
        self._before = await self._used_mb()

    async def still_held(self, wait_s: float = _RELEASE_TIMEOUT_S) -> str:
        """Wait until memory use is as before the attempt; return a message if it is not, else ""."""
        until = asyncio.get_running_loop().time() + wait_s
        while more := self._more(await self._used_mb()):
            if asyncio.get_running_loop().time() > until:
                text = ", ".join(f"{mb} MB on {name}" for name, mb in more.items())
                return f"GPU memory is still held though all processes of the job have ended: {text}."
            await asyncio.sleep(_PAUSE_S)
        return ""

    def _more(self, used: Mapping[str, int]) -> dict[str, int]:
        grown = {name: mb - self._before.get(name, mb) for name, mb in used.items()}
        return {name: mb for name, mb in grown.items() if mb > _SLACK_MB}

    async def _used_mb(self) -> dict[str, int]:
        if self._gpus is None:
            return {}
        read = await _within_limit(self._gpus.read) or ()
        own = {name for number, name in enumerate(self._gpus.ids) if self._may_use(number, name)}
        return {gpu.gpu: gpu.memory_bytes >> 20 for gpu in read if gpu.gpu in own}

    def _may_use(self, number: int, name: str) -> bool:
        """The driver may show those of other tasks of the machine, too."""
        return not self._visible or str(number) in self._visible or name in self._visible


async def _within_limit(ask: Callable[[], T]) -> T | None:
    """Return the driver's answer, None if it takes too long."""
    try:
        return await asyncio.wait_for(asyncio.to_thread(ask), _MEMORY_TIMEOUT_S)
    except TimeoutError:
        return None


async def _nvidia_smi(*arguments: str, timeout_s: float) -> str:
    """Return nvidia-smi's output. Raises OSError, TimeoutError."""
    process = await asyncio.create_subprocess_exec(
        "nvidia-smi", *arguments, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
    )
    async with asyncio.timeout(timeout_s):
        output, _ = await process.communicate()
    return output.decode(errors="replace")
