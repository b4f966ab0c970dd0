"""Whether the GPUs' memory is free again once an attempt's processes are gone: asked of the driver.

nvidia-smi speaks NVML; CUDA is not touched. Where a task has no GPUs, nothing is asked.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping

_QUERY = ("--query-gpu=uuid,memory.used", "--format=csv,noheader,nounits")
_SLACK_MB = 64
"""What a driver keeps for itself may differ by so much."""
_ASK_S = 5.0
_WAIT_S = 5.0
_PAUSE_S = 0.1


class GpuMemory:
    """What was in use before an attempt, in MB for each GPU that this task sees."""

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        pretended = environ.get("MINICLUSTER_VERIFY_GPUS") == "0"
        given = environ.get("MINICLUSTER_GPUS", "0") not in ("", "0") or environ.get("CUDA_VISIBLE_DEVICES")
        self._asked = bool(given) and not pretended
        self._before: dict[str, int] = {}

    async def remember(self) -> None:
        """Look before the first rank starts."""
        self._before = await self._used_mb()

    async def still_held(self, wait_s: float = _WAIT_S) -> str:
        """Wait until as much is free as before; return in words what is not, "" if all is."""
        until = asyncio.get_running_loop().time() + wait_s
        while more := self._more(await self._used_mb()):
            if asyncio.get_running_loop().time() > until:
                told = ", ".join(f"{mb} MB on {name}" for name, mb in more.items())
                return f"GPU memory is still held though all processes of the job have ended: {told}."
            await asyncio.sleep(_PAUSE_S)
        return ""

    def _more(self, used: Mapping[str, int]) -> dict[str, int]:
        grown = {name: mb - self._before.get(name, mb) for name, mb in used.items()}
        return {name: mb for name, mb in grown.items() if mb > _SLACK_MB}

    async def _used_mb(self) -> dict[str, int]:
        if not self._asked:
            return {}
        try:
            process = await asyncio.create_subprocess_exec(
                "nvidia-smi", *_QUERY, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
            )
            async with asyncio.timeout(_ASK_S):
                output, _ = await process.communicate()
        except (OSError, TimeoutError):
            return {}
        rows = [line.split(",") for line in output.decode(errors="replace").splitlines()]
        return {row[0].strip(): int(row[1]) for row in rows if len(row) == 2 and row[1].strip().isdecimal()}
