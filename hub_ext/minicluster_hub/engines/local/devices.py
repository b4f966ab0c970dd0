"""What this machine offers: virtual nodes whose slots are its GPUs, or CPU shares without any."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from minicluster_hub.jobs.records import NodeView

LOOPBACK = "127.0.0.1"


def gpu_indexes(dev: Path = Path("/dev")) -> tuple[int, ...]:
    """Return the indexes of the NVIDIA GPUs, by their device files: no driver call, no CUDA."""
    names = (path.name for path in dev.glob("nvidia*"))
    return tuple(sorted(int(name[6:]) for name in names if re.fullmatch(r"nvidia\d+", name)))


def virtual_nodes(count: int, gpus: Sequence[int]) -> tuple[tuple[NodeView, tuple[int, ...]], ...]:
    """Return `count` nodes, each with the indexes of its GPUs.

    GPUs are dealt in turn; with fewer GPUs than nodes there are as many nodes as GPUs, so that the
    ranks of a job never mix devices. Without any, each node has one CPU slot. The machine's cores and memory
    are dealt, too.
    """
    total = min(count, len(gpus)) if gpus else count
    dealt = [tuple(gpus[index::total]) for index in range(total)]
    cpus = len(os.sched_getaffinity(0)) / total
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // total
    return tuple(
        (
            NodeView(
                f"node-{index + 1}",
                True,
                LOOPBACK,
                ("gpu",) * len(mine) or ("cpu",),
                cpus=cpus,
                memory_bytes=memory_bytes,
            ),
            mine,
        )
        for index, mine in enumerate(dealt)
    )
