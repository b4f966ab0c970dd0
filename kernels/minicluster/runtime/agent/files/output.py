"""The output folder of a task: where it is, and which of its files can be uploaded."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from minicluster.wire import OutputLimits, relative_path

OUTPUT = "MINICLUSTER_OUTPUT"
_FOLDERS = "output-"

OVER_LIMIT = "over the cluster's limit for the files of a task"
_STRANGE_NAME = "the name is not UTF-8, or too long"
_LINK = "a link that leads out of the folder, or to a folder"
_NO_FILE = "neither a file nor a folder"


def folder_of(scratch: Path, job_id: int) -> Path:
    """Return a job's folder. It stays for the job's next attempt, which goes on where this one was."""
    return scratch / f"{_FOLDERS}{job_id}"


def forget_other_jobs(scratch: Path, job_id: int) -> None:
    for folder in scratch.glob(f"{_FOLDERS}*"):
        if folder != folder_of(scratch, job_id):
            shutil.rmtree(folder, ignore_errors=True)


@dataclass(frozen=True)
class OutputFile:
    """A file to upload. name: its path in the folder."""

    path: Path
    name: str
    size_bytes: int


@dataclass
class FoundFiles:
    """The files of a folder, the smallest first, and the names that are left out, by the reason."""

    files: list[OutputFile] = field(default_factory=list)
    left_out: dict[str, list[str]] = field(default_factory=dict)

    def leave_out(self, name: str, reason: str) -> None:
        shown = name.encode(errors="surrogateescape").decode(errors="replace")
        self.left_out.setdefault(reason, []).append(shown)


def find_files(folder: Path, limits: OutputLimits) -> FoundFiles:
    """Return the files of a folder, as many as the limits allow."""
    found = FoundFiles()
    names = _walk(folder, found) if folder.is_dir() else iter(())
    for name in islice(names, limits.files):
        _consider(folder, name, found)
    for name in islice(names, 1):
        found.leave_out(f"{name} and what comes after it", f"{OVER_LIMIT}: {limits.files} files")
    found.files.sort(key=lambda file: (file.size_bytes, file.name))
    room = limits.size_bytes
    for file in list(found.files):
        room -= file.size_bytes
        if room < 0:
            found.files.remove(file)
            found.leave_out(file.name, f"{OVER_LIMIT}: {limits.size_bytes} bytes")
    return found


def _walk(folder: Path, found: FoundFiles) -> Iterator[str]:
    """Yield the relative path of everything that is no folder, in order; links are not followed."""

    def unreadable(error: OSError) -> None:
        found.leave_out(os.path.relpath(error.filename, folder), str(error.strerror))

    for root, folders, files in os.walk(folder, onerror=unreadable):
        folders.sort()
        links = [name for name in folders if (Path(root) / name).is_symlink()]
        for name in sorted([*files, *links]):
            yield os.path.relpath(Path(root) / name, folder)


def _consider(folder: Path, name: str, found: FoundFiles) -> None:
    path = folder / name
    try:
        relative_path(name)
    except ValueError:  # That the name is no UTF-8 is one, too.
        found.leave_out(name, _STRANGE_NAME)
        return
    try:
        kind, real = path.lstat().st_mode, path.resolve()
        if stat.S_ISLNK(kind):
            if not (real.is_file() and real.is_relative_to(folder.resolve())):
                found.leave_out(name, _LINK)
                return
        elif not stat.S_ISREG(kind):
            found.leave_out(name, _NO_FILE)
            return
        found.files.append(OutputFile(real, name, real.stat().st_size))
    except (OSError, RuntimeError) as error:  # RuntimeError: links that lead in a circle.
        found.leave_out(name, getattr(error, "strerror", None) or _LINK)
