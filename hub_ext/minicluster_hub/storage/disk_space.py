"""How much of the disk is left, and whether more may be written: some of it is kept for the database."""

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
    """What is left of the disk is for the database; it can be sent again when there is room."""

    def __init__(self, folder: Path, left: str) -> None:
        super().__init__(
            f"{folder} has {left} left, which are the database's", OSError(errno.ENOSPC, "reserved")
        )


@dataclass(frozen=True)
class Room:
    """reserve_bytes: left free, but a twentieth of the disk at most; 0: nothing is, nor of the inodes."""

    folder: Path
    reserve_bytes: int = 0

    def check(self, size_bytes: int, *, small: bool = False) -> None:
        """Raise DiskReserved where so much more would leave less than the reserve.

        small: what is small and waited for (a result, output) may have half of the reserve, no more, or many
        of them would have it all.
        """
        if not self.reserve_bytes:
            return
        disk, part = os.statvfs(self.folder), 2 if small else 1
        free, least = disk.f_bavail * disk.f_frsize, self._least_bytes(disk) // part
        if free - size_bytes < least:
            raise DiskReserved(self.folder, f"{free} bytes")
        # Some file systems have as many inodes as they like, and tell 0.
        if disk.f_files and disk.f_favail < min(_MOST_FILES, disk.f_files // _SHARE) // part:
            raise DiskReserved(self.folder, f"{disk.f_favail} inodes")

    def told(self) -> DiskRoom:
        disk = os.statvfs(self.folder)
        return DiskRoom(
            free_bytes=disk.f_bavail * disk.f_frsize,
            total_bytes=disk.f_blocks * disk.f_frsize,
            reserve_bytes=self._least_bytes(disk),
        )

    def _least_bytes(self, disk: os.statvfs_result) -> int:
        return min(self.reserve_bytes, disk.f_blocks * disk.f_frsize // _SHARE)
