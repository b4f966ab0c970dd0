"""How much memory this task may take, and what the kernel has ended for it: read from its control group."""

from __future__ import annotations

import contextlib
from pathlib import Path

_GROUPS = Path("/sys/fs/cgroup")
_LIMITS = ("memory.max", "memory/memory.limit_in_bytes")
"""Of control groups version 2 and 1, as a container sees its own."""
_COUNTS = ("memory.events", "memory/memory.oom_control")
_NO_LIMIT_BYTES = 1 << 60
"""Version 1 says this or more where there is no limit."""
_OOM_SCORE = "500"
"""Of 1000; the platform's processes have 0."""


def limit_bytes(groups: Path = _GROUPS) -> int | None:
    """Return the most memory that the task may take, None without a limit."""
    told = next((text for name in _LIMITS if (text := _read(groups / name))), "")
    return int(told) if told.strip().isdecimal() and int(told) < _NO_LIMIT_BYTES else None


def oom_kills(groups: Path = _GROUPS, machine: Path = Path("/proc/vmstat")) -> int:
    """Return how many processes the kernel has killed for memory: of this task, if it has a limit,
    else of the machine since it started.
    """
    has_limit = limit_bytes(groups) is not None
    paths = [groups / name for name in _COUNTS] if has_limit else [machine]
    lines = (line.split() for path in paths for line in _read(path).splitlines())
    return next((int(line[1]) for line in lines if line[:1] == ["oom_kill"]), 0)


def offer_to_oom_killer() -> None:
    """Have the kernel, when the machine is out of memory, end this process and its children before others."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(_OOM_SCORE)


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
