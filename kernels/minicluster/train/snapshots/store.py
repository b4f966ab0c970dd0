"""A node's snapshots of one job on disk or in memory: each is there with all its bytes, or not there.

A snapshot is a folder whose name and manifest come last. A kill at any moment leaves the ones before.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from minicluster.errors import MiniclusterError

FOLDERS = "MINICLUSTER_SNAPSHOTS"
"""The variable with the folders of a node's snapshots: first the one in memory, then the one on disk."""
_MANIFEST = "manifest.json"
_UNFINISHED = ".unfinished-"
_FETCHING = "fetching.json"
_COST = "cost.json"
_SPARE = 1.1
"""How much more room than its own size a snapshot asks for."""

Key = tuple[int, int]
"""The attempt and the step: the higher, the newer, also where a job began again from step 0."""


class SnapshotNotKept(MiniclusterError):
    """A node has no room for a snapshot."""


@dataclass(frozen=True)
class Entry:
    """A snapshot that is there. files: name to [size in bytes, SHA-256]. keep: how many the job wants."""

    folder: Path
    step: int
    attempt: int
    world_size: int
    keep: int
    files: dict[str, list[Any]] = field(default_factory=dict)

    @property
    def key(self) -> Key:
        return self.attempt, self.step

    @property
    def size_bytes(self) -> int:
        return sum(size for size, _ in self.files.values())

    @property
    def names(self) -> tuple[str, ...]:
        return (_MANIFEST, *sorted(self.files))

    def is_whole(self) -> bool:
        """Read all of it and compare with the digests."""
        try:
            return all(_digest(self.folder / name) == known for name, (_, known) in self.files.items())
        except OSError:
            return False


class SnapshotStore:
    """The folders of one job on one node. Each may be missing."""

    def __init__(self, folders: tuple[Path, ...]) -> None:
        self._folders = folders

    @classmethod
    def from_environ(cls) -> SnapshotStore | None:
        """Return the shelf of this rank's node, None outside of a job."""
        told = os.environ.get(FOLDERS, "")
        return cls(tuple(map(Path, told.split(os.pathsep)))) if told else None

    def entries(self) -> list[Entry]:
        """Return what is there, the newest first."""
        found = [entry for folder in self._folders for entry in _entries(folder)]
        return sorted(found, key=lambda entry: entry.key, reverse=True)

    def find(self, key: Key) -> Entry | None:
        return next((entry for entry in self.entries() if entry.key == key), None)

    def newest(self) -> Entry | None:
        """Return the newest snapshot that is whole. Those that are damaged are removed."""
        for entry in self.entries():
            if entry.is_whole():
                return entry
            shutil.rmtree(entry.folder, ignore_errors=True)
        return None

    @contextmanager
    def adding(self, key: Key, world_size: int, keep: int, size_bytes: int) -> Iterator[Path]:
        """Give a folder to write files into; with the block's end they are a snapshot.

        Raises SnapshotNotKept.
        """
        parent = self._with_room(size_bytes)
        folder = parent / f"{_UNFINISHED}{os.getpid()}"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        try:
            yield folder
            files = {path.name: [path.stat().st_size, _digest(path)] for path in folder.iterdir()}
            entry = Entry(folder, key[1], key[0], world_size, keep, files)
            told = {name: value for name, value in asdict(entry).items() if name != "folder"}
            (folder / _MANIFEST).write_text(json.dumps(told))
            self._finish(entry)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def adopt(self, archive: Path) -> Entry:
        """Take in an archive that came from elsewhere. Raises SnapshotNotKept."""
        parent = self._with_room(archive.stat().st_size)
        folder = parent / f"{_UNFINISHED}{os.getpid()}"
        shutil.rmtree(folder, ignore_errors=True)
        try:
            _unpack(archive, folder)
            entry = _read(folder)
            if entry is None or not entry.is_whole():
                raise SnapshotNotKept("A snapshot came damaged.")
            self._finish(entry)
        except tarfile.TarError as error:
            raise SnapshotNotKept(f"A snapshot came damaged: {error}.") from error
        except OSError as error:
            raise SnapshotNotKept(f"A snapshot was not kept in {parent}: {error.strerror}.") from error
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        return self.find(entry.key) or entry

    def remove_all(self) -> None:
        for folder in self._folders:
            shutil.rmtree(folder, ignore_errors=True)

    def scratch_file(self, name: str) -> Path:
        """Return where an archive may lie for a moment: on disk."""
        self._folders[-1].mkdir(parents=True, exist_ok=True)
        return self._folders[-1] / name

    # What agent and ranks of a node tell each other.

    def mark_fetching(self, key: Key | None) -> None:
        """Say that the agent is fetching a snapshot; None: no longer."""
        if key is None:
            (self._folders[-1] / _FETCHING).unlink(missing_ok=True)
        else:
            self.scratch_file(_FETCHING).write_text(json.dumps(key))

    def fetching(self) -> Key | None:
        told = _json(self._folders[-1] / _FETCHING)
        return (told[0], told[1]) if told else None

    def tell_cost(self, **told: float) -> None:
        """Say once what a snapshot costs, for the agent's note."""
        with suppress(OSError):  # A full disk must not end the training.
            fresh = self.scratch_file(f".{_COST}")
            fresh.write_text(json.dumps(told))
            fresh.replace(fresh.with_name(_COST))

    def cost(self) -> dict[str, float] | None:
        return _json(self._folders[-1] / _COST)

    # Room.

    def _with_room(self, size_bytes: int) -> Path:
        """Return the first folder with room. Where it is short, all but the newest snapshot make some."""
        needed = int(size_bytes * _SPARE) + (1 << 20)
        for thin in (False, True):
            for folder in self._folders:
                with suppress(OSError):
                    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                    if thin:
                        _remove(self.entries()[1:])
                    if shutil.disk_usage(folder).free >= needed:
                        return folder
        raise SnapshotNotKept(
            f"A snapshot of {size_bytes / 1e6:.0f} MB has no room on this node.",
            "Give the tasks a larger --shm, or make room on the node's disk.",
        )

    def _finish(self, fresh: Entry) -> None:
        """Give a written snapshot its name, and remove those that it makes too many."""
        _remove([entry for entry in self.entries() if entry.key == fresh.key])
        fresh.folder.rename(fresh.folder.with_name(f"attempt-{fresh.attempt}-step-{fresh.step}"))
        _remove([entry for entry in self.entries() if entry.key < fresh.key][fresh.keep - 1 :])


def _remove(entries: list[Entry]) -> None:
    for entry in entries:
        # Renamed first: half a folder must not be taken for a snapshot.
        hidden = entry.folder.with_name(f"{_UNFINISHED}{entry.folder.name}")
        with suppress(OSError):
            entry.folder.rename(hidden)
        shutil.rmtree(hidden, ignore_errors=True)


def _entries(folder: Path) -> Iterator[Entry]:
    with suppress(OSError):
        for path in list(folder.iterdir()):
            if not path.name.startswith(".") and path.is_dir() and (entry := _read(path)):
                yield entry


def _read(folder: Path) -> Entry | None:
    told = _json(folder / _MANIFEST)
    try:
        return None if told is None else Entry(folder=folder, **told)
    except TypeError:
        return None


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _unpack(archive: Path, folder: Path) -> None:
    """Write a snapshot's files; of an archive that holds anything else, nothing but them."""
    folder.mkdir(parents=True)
    # Not extractall(): Python 3.11.2 of Debian 12 knows no filter for it.
    with tarfile.open(archive) as tar:
        for member in tar:
            content = tar.extractfile(member) if member.isreg() and "/" not in member.name else None
            if content is not None:
                with (folder / member.name).open("wb") as file:
                    shutil.copyfileobj(content, file, 1 << 20)
