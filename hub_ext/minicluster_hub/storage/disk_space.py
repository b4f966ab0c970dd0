"""How much space of the disk is left. A part of it is reserved for the database."""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass
from pathlib import Path

from minicluster.wire import DiskRoom
from minicluster_hub.support.disk_errors import NotKept

_SHARE = 20
_MOST_FILES = 10_000


class DiskReserved(NotKept):
    """The rest of the disk is reserved for the database. The upload can be repeated when there is room."""

    def __init__(self, folder: Path, left: str) -> None:
        super().__init__(
            f"{folder} has {left} left, which are the database's", OSError(errno.ENOSPC, "reserved")
        )


@dataclass(frozen=True)
class DiskSpace:
    """reserve_bytes: left free, but at most 1/20 of the disk; 0: neither bytes nor inodes are reserved."""

    folder: Path
    reserve_bytes: int = 0

    def check(self, size_bytes: int, *, small: bool = False) -> None:
        """Raise DiskReserved if `size_bytes` more would leave less than the reserve.

        small: a small file for which a client waits (a result, output); it may use half of the reserve, so
        that many small files cannot use all of it.
        """
        if not self.reserve_bytes:
            return
        disk, part = os.statvfs(self.folder), 2 if small else 1
        free, least = disk.f_bavail * disk.f_frsize, self._least_bytes(disk) // part
        if free - size_bytes < least:
            raise DiskReserved(self.folder, f"{free} bytes")
        # File systems without a fixed number of inodes report 0.
        if disk.f_files and disk.f_favail < min(_MOST_FILES, disk.f_files // _SHARE) // part:
            raise DiskReserved(self.folder, f"{disk.f_favail} inodes")

    def report(self) -> DiskRoom:
        disk = os.statvfs(self.folder)
        return DiskRoom(
            free_bytes=disk.f_bavail * disk.f_frsize,
            total_bytes=disk.f_blocks * disk.f_frsize,
            reserve_bytes=self._least_bytes(disk),
        )

    def _least_bytes(self, disk: os.statvfs_result) -> int:
        return min(self.reserve_bytes, disk.f_blocks * disk.f_frsize // _SHARE)
