"""Why a task is ended that filled its node's disk, as far as it sees that from within."""

from __future__ import annotations

import os
import time
from pathlib import Path

from minicluster.wire import ErrorKind, JobError

_HINT = (
    "Keep less there: remove files and checkpoints that are not needed any more, read data sets in place of "
    "copies, pack many small files into one. An admin's `doctor` tells how full the nodes' disks are."
)


def error(node: str, folder: Path, processes: Path = Path("/proc")) -> JobError:
    """Return the error of a task on that node. folder: one on the disk that counts."""
    disk = os.statvfs(folder)
    wrote = written_bytes(processes)
    free, total = disk.f_bavail * disk.f_frsize, disk.f_blocks * disk.f_frsize
    left = f"{free / 1e9:.1f} of {total / 1e9:.0f} GB were left"
    if disk.f_files:
        left += f", and {disk.f_favail:,} of {disk.f_files:,} inodes"
    told = f" It wrote {wrote / 1e9:.1f} GB." if wrote else ""
    message = (
        f"The disk of {node} was nearly full ({left}), and this job's task there was ended because it took "
        f"most of it lately, or is the newest one where nobody is seen to have taken it.{told}"
    )
    return JobError(kind=ErrorKind.DISK, message=message, node=node, hint=_HINT, at=time.time())


def written_bytes(processes: Path) -> int:
    """Return what the processes here, and those that they waited for, have written; 0 where nobody counts."""
    return sum(_written(path) for path in processes.glob("[0-9]*/io"))


def _written(path: Path) -> int:
    """A page that was written to counts at once; one that never came to the disk does not."""
    try:
        told = dict(line.split(": ") for line in path.read_text().splitlines())
        return max(0, int(told["write_bytes"]) - int(told["cancelled_write_bytes"]))
    except (OSError, ValueError, KeyError):  # It ended, or is not ours.
        return 0
