"""Whether a container sees the GPUs that it was given: no more, no fewer, and no others.

Asked of nvidia-smi, which NVIDIA's container toolkit puts into the container; CUDA is not touched.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Collection, Mapping, Sequence

_ASSIGNED = "DOCKER_RESOURCE_GPU"
_PATIENCE_S = 20.0


async def trouble(environ: Mapping[str, str] = os.environ) -> str:
    """Return in words how the GPUs differ from those that the engine asked for; "" if they do not."""
    wanted = int(environ.get("MINICLUSTER_GPUS") or 0)
    if not wanted:
        return ""
    assigned = [name for name in environ.get(_ASSIGNED, "").split(",") if name]
    if environ.get("MINICLUSTER_VERIFY_GPUS") == "0":
        return difference(wanted, assigned, assigned)
    try:
        return difference(wanted, assigned, await _seen())
    except (OSError, TimeoutError) as error:
        return f"{wanted} GPUs are assigned, and nvidia-smi does not tell which are there ({error})"


def difference(wanted: int, assigned: Sequence[str], seen: Collection[str]) -> str:
    """Compare the ids that Swarm assigned with those seen. Ids that are no UUIDs are only counted."""
    if len(assigned) != wanted:
        return (
            f"{wanted} GPUs were asked for, Swarm assigned {len(assigned)} ({', '.join(assigned) or 'none'})"
        )
    if len(seen) != wanted:
        return f"{wanted} GPUs are assigned, the container sees {len(seen)} ({', '.join(seen) or 'none'})"
    if all(name.startswith("GPU-") for name in assigned) and set(assigned) != set(seen):
        return f"the GPUs {', '.join(assigned)} are assigned, the container sees {', '.join(seen)}"
    return ""


async def _seen() -> list[str]:
    process = await asyncio.create_subprocess_exec(
        "nvidia-smi", "-L", stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    async with asyncio.timeout(_PATIENCE_S):
        output, _ = await process.communicate()
    return re.findall(r"UUID: (GPU-[0-9a-f-]+)", output.decode(errors="replace"))
