"""A node's snapshots of one job, in memory or on disk: each is complete or absent.

A snapshot is a folder; its manifest and final name are written last. So a kill at any moment leaves earlier
snapshots intact.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tarfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from minicluster.errors import MiniclusterError

FOLDERS = "MINICLUSTER_SNAPSHOTS"
"""The variable with the folders of a node's snapshots: first that in memory, then that on disk."""
MEMORY = "MINICLUSTER_MEMORY"
"""The variable with the task's folder in memory, if the engine chose one; the engine cleans it up."""
_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - memory, not a folder for files of anybody
_MANIFEST = "manifest.json"
_UNFINISHED = ".unfinished-"
_FETCHING = "fetching.json"
_COST = "cost.json"
_STORED = "stored.json"
DIVIDED_REST = "rest.pickle"
"""The file of a divided model's part that has what its tensors do not hold."""
PIECE_BYTES = 1 << 20
_BLOCK = tarfile.BLOCKSIZE
_SPARE = 1.1
"""Free space that a snapshot needs, as a multiple of its size."""

Key = tuple[int, int]
"""Attempt and step. A higher key is newer, even if a job started again from step 0."""


class SnapshotNotKept(MiniclusterError):
    """A node lacks space for a snapshot."""


@dataclass(frozen=True)
class StoredSnapshot:
    """A stored snapshot, or a node's part of one.

    files: name to [size in bytes, SHA-256]. keep: number of snapshots to retain. part, parts: which of how
    many, if it is that of a divided model. due: whether it is one of those that go into the job's storage;
    the parts of one snapshot agree about it.
    """

    folder: Path
    step: int
    attempt: int
    world_size: int
    keep: int
    files: dict[str, list[Any]] = field(default_factory=dict)
    part: int = 0
    parts: int = 1
    due: bool = True

    @property
    def key(self) -> Key:
        return self.attempt, self.step

    @property
    def divided(self) -> bool:
        """Whether it is that of a divided model, or a part of one."""
        return self.parts > 1 or DIVIDED_REST in self.files

    @property
    def size_bytes(self) -> int:
        return sum(size for size, _ in self.files.values())

    @property
    def names(self) -> tuple[str, ...]:
        return (_MANIFEST, *sorted(self.files))

    def is_whole(self) -> bool:
        """Read all files and compare their digests."""
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
        """Return the store of this rank's node; None outside of a job."""
        setting = os.environ.get(FOLDERS, "")
        return cls(tuple(map(Path, setting.split(os.pathsep)))) if setting else None

    def entries(self) -> list[StoredSnapshot]:
        """Return the stored snapshots, newest first."""
        found = [entry for folder in self._folders for entry in _entries(folder)]
        return sorted(found, key=lambda entry: entry.key, reverse=True)

    def find(self, key: Key, part: int = 0) -> StoredSnapshot | None:
        return next((entry for entry in self.entries() if (entry.key, entry.part) == (key, part)), None)

    def newest(self) -> StoredSnapshot | None:
        """Return the newest intact snapshot of a whole model; remove damaged ones."""
        return next((one for one in self.entries() if not one.divided and _whole_or_removed(one)), None)

    def remove_damaged(self) -> None:
        """Read all snapshots and parts, and remove those that are damaged."""
        for entry in self.entries():
            _whole_or_removed(entry)

    @contextmanager
    def adding(self, key: Key, world_size: int, keep: int, size_bytes: int) -> Iterator[Path]:
        """Yield a folder for files; at the end of the block they become a snapshot.

        Raises SnapshotNotKept.
        """
        parent = self._with_room(size_bytes)
        folder = parent / f"{_UNFINISHED}{os.getpid()}"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        try:
            yield folder
            files = _digests(folder)
            self._manifest(StoredSnapshot(folder, key[1], key[0], world_size, keep, files))
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    @contextmanager
    def adding_part(self, entry: StoredSnapshot) -> Iterator[None]:
        """Make a part of a snapshot from the files in its folder, at the end of the block.

        entry: without files, in a folder of `folder_for_part`.
        """
        try:
            yield
            self._manifest(replace(entry, files=_digests(entry.folder)))
        finally:
            shutil.rmtree(entry.folder, ignore_errors=True)

    def folder_for_part(self, key: Key, size_bytes: int) -> Path:
        """Return an empty folder for the files of a node's ranks. Raises SnapshotNotKept."""
        for folder in self._folders:
            # What ranks that were killed have left.
            for unfinished in folder.glob(f"{_UNFINISHED}part-*"):
                shutil.rmtree(unfinished, ignore_errors=True)
        folder = self._with_room(size_bytes) / f"{_UNFINISHED}part-{key[0]}-{key[1]}"
        folder.mkdir()
        return folder

    def _manifest(self, entry: StoredSnapshot) -> None:
        values = {name: value for name, value in asdict(entry).items() if name != "folder"}
        (entry.folder / _MANIFEST).write_text(json.dumps(values))
        self._finish(entry)

    def adopt(self, archive: Path) -> StoredSnapshot:
        """Store a snapshot from an archive. Raises SnapshotNotKept."""
        parent = self._with_room(archive.stat().st_size)
        folder = parent / f"{_UNFINISHED}{os.getpid()}"
        shutil.rmtree(folder, ignore_errors=True)
        try:
            _unpack(archive, folder)
            entry = _read(folder)
            if entry is None or not entry.is_whole():
                raise SnapshotNotKept("A snapshot arrived damaged.")
            self._finish(entry)
        except tarfile.TarError as error:
            raise SnapshotNotKept(f"A snapshot arrived damaged: {error}.") from error
        except OSError as error:
            raise SnapshotNotKept(f"A snapshot was not kept in {parent}: {error.strerror}.") from error
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        return self.find(entry.key, entry.part) or entry

    def scratch_file(self, name: str) -> Path:
        """Return the path of a temporary archive, on disk."""
        self._folders[-1].mkdir(parents=True, exist_ok=True)
        return self._folders[-1] / name

    # Messages between the agent and the ranks of a node.

    def mark_fetching(self, key: Key | None) -> None:
        """Record which snapshot the agent is fetching; None: no snapshot."""
        if key is None:
            (self._folders[-1] / _FETCHING).unlink(missing_ok=True)
        else:
            self.scratch_file(_FETCHING).write_text(json.dumps(key))

    def fetching(self) -> Key | None:
        data = _json(self._folders[-1] / _FETCHING)
        return (data[0], data[1]) if data else None

    def mark_stored(self, key: Key) -> None:
        """Record of which snapshot this node's part is in the job's storage."""
        with suppress(OSError):  # Without it, the ranks take longer until the next one.
            fresh = self.scratch_file(f".{_STORED}")
            fresh.write_text(json.dumps(key))
            fresh.replace(fresh.with_name(_STORED))

    def stored(self) -> Key | None:
        data = _json(self._folders[-1] / _STORED)
        return (data[0], data[1]) if data else None

    def tell_cost(self, **costs: float) -> None:
        """Report a snapshot's cost once, for the agent's message to the user."""
        with suppress(OSError):  # A full disk must not end the training.
            fresh = self.scratch_file(f".{_COST}")
            fresh.write_text(json.dumps(costs))
            fresh.replace(fresh.with_name(_COST))

    def cost(self) -> dict[str, float] | None:
        return _json(self._folders[-1] / _COST)

    # Free space.

    def _with_room(self, size_bytes: int) -> Path:
        """Return the first folder with enough space. If there is none, keep only the newest snapshot."""
        needed = int(size_bytes * _SPARE) + (1 << 20)
        for thin in (False, True):
            for folder in self._folders:
                with suppress(OSError):
                    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                    if thin:
                        entries = self.entries()
                        _remove([one for one in entries if one.key != entries[0].key])
                    if shutil.disk_usage(folder).free >= needed:
                        return folder
        raise SnapshotNotKept(
            f"A snapshot of {size_bytes / 1e6:.0f} MB has no room on this node.",
            "Give the tasks a larger --shm, or make room on the node's disk.",
        )

    def _finish(self, fresh: StoredSnapshot) -> None:
        """Give a written snapshot its final name, and remove those beyond `keep`."""
        same = (fresh.part, fresh.parts)
        _remove([one for one in self.entries() if (one.key, one.part, one.parts) == (fresh.key, *same)])
        name = f"attempt-{fresh.attempt}-step-{fresh.step}"
        in_parts = fresh.parts > 1
        fresh.folder.rename(fresh.folder.with_name(f"{name}-part-{fresh.part}" if in_parts else name))
        # Another node may not have its part of the fresh one yet: so the one before it stays.
        keep = max(fresh.keep, 2) if in_parts else fresh.keep
        entries = self.entries()
        older = sorted({one.key for one in entries if one.key < fresh.key}, reverse=True)
        due = next((one.key for one in entries if one.due and one.parts > 1), None)
        _remove([one for one in entries if one.key in older[keep - 1 :] and one.key != due])


def _whole_or_removed(entry: StoredSnapshot) -> bool:
    """Return whether a snapshot is intact; remove it if it is not."""
    if entry.is_whole():
        return True
    shutil.rmtree(entry.folder, ignore_errors=True)
    return False


def _remove(entries: list[StoredSnapshot]) -> None:
    for entry in entries:
        # Rename first, so that nobody reads a partly removed folder as a snapshot.
        hidden = entry.folder.with_name(f"{_UNFINISHED}{entry.folder.name}")
        with suppress(OSError):
            entry.folder.rename(hidden)
        shutil.rmtree(hidden, ignore_errors=True)


def _entries(folder: Path) -> Iterator[StoredSnapshot]:
    with suppress(OSError):
        for path in list(folder.iterdir()):
            if not path.name.startswith(".") and path.is_dir() and (entry := _read(path)):
                yield entry


def _read(folder: Path) -> StoredSnapshot | None:
    data = _json(folder / _MANIFEST)
    try:
        return None if data is None else StoredSnapshot(folder=folder, **data)
    except TypeError:
        return None


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None


def _digests(folder: Path) -> dict[str, list[Any]]:
    return {path.name: [path.stat().st_size, _digest(path)] for path in folder.iterdir()}


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _unpack(archive: Path, folder: Path) -> None:
    """Extract a snapshot's files, and nothing else from the archive."""
    folder.mkdir(parents=True)
    # Not extractall(): in Python 3.11.2 (Debian 12) it has no `filter`.
    with tarfile.open(archive) as tar:
        for member in tar:
            content = tar.extractfile(member) if member.isreg() and "/" not in member.name else None
            if content is not None:
                with (folder / member.name).open("wb") as file:
                    shutil.copyfileobj(content, file, 1 << 20)


# A snapshot as one stream of bytes (a tar file), read directly from its folder without a second copy.


class Archive:
    """Holds a snapshot's files open, so that it can be read even after its removal. Raises OSError.

    The same snapshot always gives the same bytes.
    """

    def __init__(self, snapshot: StoredSnapshot) -> None:
        self._open = ExitStack()
        self._files: list[tuple[bytes, Any, int]] = []
        try:
            for name in snapshot.names:
                self._add(snapshot.folder / name)
        except BaseException:
            self.close()
            raise
        self.size_bytes = sum(len(head) + _padded(size) for head, _, size in self._files) + 2 * _BLOCK

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._open.close()

    def sha256(self) -> str:
        digest = hashlib.sha256()
        for piece in self.pieces():
            digest.update(piece)
        return digest.hexdigest()

    def pieces(self) -> Iterator[bytes]:
        """Yield all bytes, in pieces of at most PIECE_BYTES."""
        for head, file, size in self._files:
            yield head
            file.seek(0)
            while piece := file.read(PIECE_BYTES):
                yield piece
            yield b"\0" * (_padded(size) - size)
        yield b"\0" * (2 * _BLOCK)

    def _add(self, path: Path) -> None:
        file = self._open.enter_context(path.open("rb"))
        size = path.stat().st_size
        info = tarfile.TarInfo(path.name)
        info.size, info.mode = size, 0o600
        self._files.append(
            (info.tobuf(tarfile.USTAR_FORMAT if size < 8 << 30 else tarfile.GNU_FORMAT), file, size)
        )


def _padded(size: int) -> int:
    return -(-size // _BLOCK) * _BLOCK


# A node stores snapshots in memory; if memory is full, on disk.


def memory_folder(environ: Mapping[str, str] = os.environ) -> Path | None:
    """Return the task's folder in memory; None if there is no in-memory file system."""
    text = environ.get(MEMORY) or str(_SHARED_MEMORY / f"minicluster-{environ.get('MINICLUSTER_TASK', '0')}")
    return Path(text) if _SHARED_MEMORY.is_dir() else None


def job_folders(job_id: int, environ: Mapping[str, str] = os.environ) -> tuple[Path, ...]:
    """Return the folders of a job's snapshots, memory first. Agent and ranks compute the same folders."""
    roots = (memory_folder(environ), Path(environ["MINICLUSTER_SCRATCH"]) / "snapshots")
    return tuple(root / f"job-{job_id}" for root in roots if root)


def forget_other_jobs(job_id: int, environ: Mapping[str, str] = os.environ) -> None:
    for folder in job_folders(job_id, environ):
        if folder.parent.is_dir():
            for other in folder.parent.iterdir():
                if other.name != folder.name:
                    shutil.rmtree(other, ignore_errors=True)


def forget_all(environ: Mapping[str, str] = os.environ) -> None:
    for folder in job_folders(0, environ):
        shutil.rmtree(folder.parent, ignore_errors=True)
