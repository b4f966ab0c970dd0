"""The folder of a cell's notebook, which ranks may see as well, and the names that were not sent.

Equal paths prove nothing: each container has a /home. Two processes see the same folder if it has the same
inode on the same machine, or on the same file server.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

_BOOT = Path("/proc/sys/kernel/random/boot_id")
_MOUNTS = Path("/proc/self/mountinfo")
_FILE_SERVERS = ("nfs", "nfs4", "cifs", "smb3", "ceph", "lustre", "gpfs", "beegfs", "fuse.glusterfs")
_MOST_FILES = 1000


@dataclass(frozen=True)
class NotebookFolder:
    """What ranks know of the notebook's folder; empty if they know nothing.

    marks: what identifies the folder. files: the names of what is in it. stayed: names that the cell reads
    and that are not sent, with the reason.
    """

    folder: str = ""
    marks: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    stayed: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def here(cls, folder: Path, stayed: Mapping[str, str]) -> NotebookFolder:
        """Describe a folder of this machine."""
        files: list[str] = []
        marks: list[str] = []
        with contextlib.suppress(OSError):
            files = sorted(path.name for path in folder.iterdir())[:_MOST_FILES]
            marks = list(_marks(folder))
        return cls(str(folder), tuple(marks), tuple(files), dict(stayed))

    @classmethod
    def of_json(cls, fields: Mapping[str, Any]) -> NotebookFolder:
        marks, files = (tuple(map(str, fields.get(name, ()))) for name in ("marks", "files"))
        return cls(str(fields.get("folder", "")), marks, files, dict(fields.get("stayed", {})))

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def seen(self) -> bool:
        """Whether this process sees the same folder, and may read it."""
        folder = Path(self.folder)
        try:
            same = bool(self.folder) and bool(set(self.marks) & set(_marks(folder)))
        except OSError:
            return False
        return same and os.access(folder, os.R_OK | os.X_OK)


def _marks(folder: Path) -> Iterator[str]:
    found = folder.stat()
    yield f"{_BOOT.read_text().strip()} {found.st_dev} {found.st_ino}"
    kind, source = _mounted(folder.resolve())
    if kind in _FILE_SERVERS:
        yield f"{kind} {source} {found.st_ino}"


def _mounted(folder: Path) -> tuple[str, str]:
    """Return the type and the source of the file system that holds a folder, if it is a file server's."""
    best, found = -1, ("", "")
    mounts = _MOUNTS.read_text()
    # Each cell asks, and a container can have a hundred mounts.
    if not any(f" - {kind} " in mounts for kind in _FILE_SERVERS):
        return found
    for line in mounts.splitlines():
        place, _, about = line.partition(" - ")
        mount = Path(place.split()[4].encode().decode("unicode_escape"))
        if folder.is_relative_to(mount) and len(mount.parts) >= best:
            kind, source = about.split()[:2]
            best, found = len(mount.parts), (kind, source)
    return found
