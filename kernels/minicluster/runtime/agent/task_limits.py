"""How much memory and disk this task may use, and how many processes the kernel killed for memory."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from pathlib import Path

from minicluster.wire import ErrorKind, JobError

_GROUPS = Path("/sys/fs/cgroup")
_LIMITS = ("memory.max", "memory/memory.limit_in_bytes")
"""Of control groups version 2 and 1, as a container sees its own."""
_COUNTS = ("memory.events", "memory/memory.oom_control")
_NO_LIMIT_BYTES = 1 << 60
"""Version 1 says this or more where there is no limit."""
_OOM_SCORE = "500"
"""Of 1000; the platform's processes have 0."""
_LEAST_BYTES = 16 * 2**20

_HINT = (
    "Keep less there: remove files and checkpoints that are not needed any more, read data sets in place of "
    "copies, pack many small files into one. An admin's `doctor` tells how full the nodes' disks are."
)


def limit_bytes(groups: Path = _GROUPS) -> int | None:
    """Return the most memory that the task may take, None without a limit."""
    value = next((text for name in _LIMITS if (text := _read(groups / name))), "")
    return int(value) if value.strip().isdecimal() and int(value) < _NO_LIMIT_BYTES else None


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


# A full disk is reported before ranks start: otherwise it shows as some library's strange error.


def disk_trouble(folder: Path, least_bytes: int = _LEAST_BYTES) -> str:
    """Return why ranks cannot start if the folder's disk is full, else "". The folder may be missing."""
    there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    free_bytes = shutil.disk_usage(there).free
    return "" if free_bytes >= least_bytes else f"its disk is full ({free_bytes / 2**20:.0f} MB are free)"


def disk_error(node: str, folder: Path, processes: Path = Path("/proc")) -> JobError:
    """Return the error of a task on that node. folder: one on the disk that counts."""
    disk = os.statvfs(folder)
    wrote = written_bytes(processes)
    free, total = disk.f_bavail * disk.f_frsize, disk.f_blocks * disk.f_frsize
    left = f"{free / 1e9:.1f} of {total / 1e9:.0f} GB were left"
    if disk.f_files:
        left += f", and {disk.f_favail:,} of {disk.f_files:,} inodes"
    text = f" It wrote {wrote / 1e9:.1f} GB." if wrote else ""
    message = (
        f"The disk of {node} was nearly full ({left}), and this job's task there was ended because it took "
        f"most of it lately, or is the newest one where nobody is seen to have taken it.{text}"
    )
    return JobError(kind=ErrorKind.DISK, message=message, node=node, hint=_HINT, at=time.time())


def written_bytes(processes: Path) -> int:
    """Return the bytes written by the processes here and their reaped children; 0 if not counted."""
    return sum(_written(path) for path in processes.glob("[0-9]*/io"))


def _written(path: Path) -> int:
    """The kernel counts a page at once, and subtracts it if it is dropped before it is written."""
    try:
        counters = dict(line.split(": ") for line in path.read_text().splitlines())
        return max(0, int(counters["write_bytes"]) - int(counters["cancelled_write_bytes"]))
    except (OSError, ValueError, KeyError):  # It ended, or is not ours.
        return 0
