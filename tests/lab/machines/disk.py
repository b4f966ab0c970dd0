"""A node's disk: a folder, or a disk image of limited size that tests can fill."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from .machine import Machine
from .processes import LabError, remove_tree, run, wait_for

_BLOCK_BYTES = 4096


class Disk:
    """An engine's data folder; with `size_mb` it is a file system of that size."""

    def __init__(self, machine: Machine, folder: Path, size_mb: int | None) -> None:
        self.folder = folder
        self._machine = machine
        self._image = folder.with_suffix(".ext4")
        self._size_mb = size_mb

    @property
    def is_plain(self) -> bool:
        """Whether the disk is a folder of the machine that runs the lab."""
        return self._size_mb is None

    @property
    def seen(self) -> Path:
        """The folder as seen from the lab machine, which has its own mounts."""
        return self._machine.root / self.folder.relative_to("/")

    def mount(self) -> None:
        """Mount the disk in the machine, until the machine is switched off."""
        self.folder.mkdir(parents=True, exist_ok=True)
        if self._size_mb is None or self.seen.is_mount():
            return
        if not self._image.exists():
            with self._image.open("wb") as image:
                image.truncate(self._size_mb << 20)
            # Half of the usual number of inodes, since a test uses them up.
            run("mkfs.ext4", "-q", "-m", "0", "-i", "32768", self._image)
        # A file system mounted twice breaks; the former mount ends shortly after its machine.
        wait_for(lambda: not run("losetup", "-j", self._image), f"{self._image} to be free", 20)
        run(*self._machine.inside("mount", "-o", "loop", self._image, self.folder))

    def fill(self, leave_bytes: int = 0) -> None:
        """Fill the disk except for `leave_bytes`, as forgotten files would."""
        if self._size_mb is None:
            raise LabError(f"{self.folder} has no size of its own: make the lab with disk_mb=...")
        with self._filling().open("ab", buffering=0) as file:
            if leave_bytes:
                disk = os.fstatvfs(file.fileno())
                _grow(file.fileno(), disk.f_bavail * disk.f_frsize - leave_bytes)
                return
            # Try every size down to a single block, since a failed allocation takes nothing.
            size_bytes = 1 << 30
            while size_bytes >= _BLOCK_BYTES:
                size_bytes >>= not _grow(file.fileno(), size_bytes)

    @property
    def free_bytes(self) -> int:
        disk = os.statvfs(self.seen)
        return disk.f_bavail * disk.f_frsize

    @property
    def free_inodes(self) -> int:
        return os.statvfs(self.seen).f_favail

    def free(self) -> None:
        self._filling().unlink(missing_ok=True)

    def remove(self) -> None:
        """Remove the disk. The machine must be off."""
        self._image.unlink(missing_ok=True)
        remove_tree(self.folder)

    def _filling(self) -> Path:
        return self.seen / "filling"


def _grow(file: int, size_bytes: int) -> bool:
    try:
        os.posix_fallocate(file, os.fstat(file).st_size, size_bytes)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        return False
    return True
