"""Blobs on disk by their SHA-256: payloads, results and jobs' files, which the service never opens.

A file gets its name only when it is complete and its hash is right.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from minicluster.wire import BlobInfo
from minicluster_hub.support.disk_errors import NotKept

if TYPE_CHECKING:
    from minicluster_hub.store import Store

_SHA256 = re.compile(r"[0-9a-f]{64}")
_INCOMING = "incoming"
_JOBS = "jobs"
_OUTPUT = "output"
_UNSYNCED = "unsynced"


class BlobError(Exception):
    """Base of the blobs' errors."""


class BlobDamaged(BlobError):
    """The content's hash differs from the blob's name."""


class BlobNameWrong(BlobError):
    """Not a SHA-256 in lower-case hexadecimal; it never becomes a path."""

    def __init__(self, sha256: str) -> None:
        super().__init__(f"{sha256[:80]!r} is not a SHA-256: 64 lower-case hexadecimal digits are wanted")


class BlobNotKept(NotKept, BlobError):
    """The disk refused the blob; it can be sent again."""


class BlobWriter:
    """Writes a blob. As a context it commits at the block's end, or discards on an error.

    size_bytes: written so far. unsynced: who syncs the blob later; None: `commit` does.
    """

    def __init__(
        self,
        target: Path,
        incoming: Path,
        sha256: str,
        naming: threading.Lock,
        unsynced: UnsyncedBlobs | None,
    ) -> None:
        self.size_bytes = 0
        self._unsynced = unsynced
        self._naming = naming
        self._target = target
        self._sha256 = sha256
        self._hash = hashlib.sha256()
        try:
            incoming.mkdir(mode=0o700, parents=True, exist_ok=True)
            # mkstemp: readable for the service's user only, and another name for each upload.
            descriptor, name = tempfile.mkstemp(prefix=f"{sha256[:16]}-", dir=incoming)
        except OSError as error:
            raise self._not_kept(error) from error
        self._path = Path(name)
        self._file = os.fdopen(descriptor, "wb")

    def write(self, data: bytes) -> None:
        """Write the next bytes. Raises BlobNotKept."""
        try:
            self._file.write(data)
        except OSError as error:
            raise self._not_kept(error) from error
        self._hash.update(data)
        self.size_bytes += len(data)

    def commit(self) -> Path:
        """Check the hash, sync the blob to the disk or leave this for later, name it and return its path.

        It blocks on the disk: commit a large blob in a thread. Raises BlobDamaged, BlobNotKept, after it has
        removed the file.
        """
        try:
            self._check()
            self._target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            if self._unsynced is None:
                self._file.flush()
                os.fsync(self._file.fileno())
                self._name()
                _sync(self._target.parent)
            else:
                self._file.close()
                mark = self._unsynced.mark(self._sha256)
                self._name()
                self._unsynced.sync_soon(mark, self._target)
        except OSError as error:
            raise self._not_kept(error) from error
        finally:
            self.discard()
        return self._target

    def _name(self) -> None:
        with self._naming:
            self._path.replace(self._target)

    def discard(self) -> None:
        """Remove the file unless it is committed; can be repeated."""
        with suppress(OSError):  # a full disk refuses the last buffer; the file is removed anyway
            self._file.close()
        self._path.unlink(missing_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.commit()
        else:
            self.discard()

    def _check(self) -> None:
        found = self._hash.hexdigest()
        if found != self._sha256:
            raise BlobDamaged(
                f"the blob {self._sha256} came damaged: its {self.size_bytes} bytes have the SHA-256 "
                f"{found}; send it again"
            )

    def _not_kept(self, error: OSError) -> BlobNotKept:
        return BlobNotKept(f"the blob {self._sha256} was not kept in {self._target.parent}", error)


class UnsyncedBlobs:
    """Blobs that get their name before they are synced: whoever sent them can send them again.

    Each has a mark, an empty file, until it is synced. What is marked at the service's start is checked:
    a power cut may have damaged it.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._syncing = ThreadPoolExecutor(1, "blob-sync")

    def mark(self, sha256: str) -> Path:
        """Mark a blob before it gets its name. Raises OSError."""
        self._folder.mkdir(mode=0o700, exist_ok=True)
        descriptor, name = tempfile.mkstemp(prefix=f"{sha256}-", dir=self._folder)
        os.close(descriptor)
        return Path(name)

    def sync_soon(self, mark: Path, target: Path) -> None:
        self._syncing.submit(self._sync, mark, target)

    def check(self, path: Callable[[str], Path]) -> None:
        """Remove the marked blobs that are damaged; sync the others."""
        for mark in self._folder.glob("*"):
            target = path(mark.name.partition("-")[0])
            if target.exists() and not _is_sound(target):
                target.unlink()
            self._sync(mark, target)

    def _sync(self, mark: Path, target: Path) -> None:
        with suppress(OSError):  # A disk that fails: the mark stays.
            if target.exists():
                _sync(target)
                _sync(target.parent)
            mark.unlink(missing_ok=True)


class BlobFiles:
    """All blobs under one folder: SHA[:2]/SHA."""

    def __init__(self, root: Path) -> None:
        self._root = root
        # Held while a blob gets its name: `remove_old` must not remove a blob that has just come again.
        self._naming = threading.Lock()
        self._unsynced = UnsyncedBlobs(root / _UNSYNCED)

    def path(self, sha256: str) -> Path:
        """Return the path of a blob, whether it is there or not. Raises BlobNameWrong."""
        if not _SHA256.fullmatch(sha256):
            raise BlobNameWrong(sha256)
        return self._root / sha256[:2] / sha256

    def of_job(self, job_id: int) -> BlobFiles:
        """Return the blobs that only this job uses: its snapshots."""
        return BlobFiles(self._root / _JOBS / str(job_id))

    def remove_own(self, job_id: int) -> None:
        """Delete the blobs that only this job uses."""
        shutil.rmtree(self._root / _JOBS / str(job_id), ignore_errors=True)

    def output_of(self, job_id: int) -> BlobFiles:
        """Return the blobs of a job's output folder."""
        return BlobFiles(self._root / _OUTPUT / str(job_id))

    def remove_output(self, job_id: int) -> None:
        shutil.rmtree(self._root / _OUTPUT / str(job_id), ignore_errors=True)

    def outputs(self) -> list[int]:
        """Return the ids of the jobs with stored files of their output folders."""
        return sorted(int(path.name) for path in (self._root / _OUTPUT).glob("*"))

    def jobs(self) -> list[int]:
        """Return the ids of the jobs with blobs of their own."""
        return sorted(int(path.name) for path in (self._root / _JOBS).glob("*"))

    def remove(self, sha256: str) -> None:
        """Delete a blob. A reader that has it open can read it to its end."""
        self.path(sha256).unlink(missing_ok=True)

    def older_than(self, age_s: float) -> list[str]:
        """Return the blobs that came more than `age_s` ago."""
        before = time.time() - age_s
        there = (path for path in self._root.glob("??/*") if _SHA256.fullmatch(path.name))
        return [path.name for path in there if path.stat().st_mtime < before]

    def remove_old(self, blobs: Iterable[str], age_s: float) -> None:
        """Delete these blobs, except those that have come again since."""
        before = time.time() - age_s
        for path in map(self.path, blobs):
            with self._naming, suppress(FileNotFoundError):
                if path.stat().st_mtime < before:
                    path.unlink()

    def size(self, sha256: str) -> int | None:
        """Return a blob's size in bytes, None if it is not there."""
        try:
            return self.path(sha256).stat().st_size
        except FileNotFoundError:
            return None

    def writer(self, sha256: str, *, durable: bool = True) -> BlobWriter:
        """Return a writer for this blob. Several may write the same blob at once.

        durable: a blob that is committed survives a power cut. False: from some seconds later on.
        """
        unsynced = None if durable else self._unsynced
        return BlobWriter(self.path(sha256), self._root / _INCOMING, sha256, self._naming, unsynced)

    def keep(self, data: bytes) -> BlobInfo:
        """Write a small blob. Blocks on the disk. Raises BlobNotKept."""
        info = BlobInfo(sha256=hashlib.sha256(data).hexdigest(), size_bytes=len(data))
        with self.writer(info.sha256) as writer:
            writer.write(data)
        return info

    def sweep(self) -> None:
        """Delete what a kill or a power cut left of uploads; for the service's start."""
        for path in (self._root / _INCOMING).glob("*"):
            path.unlink(missing_ok=True)
        self._unsynced.check(self.path)
        for job_id in self.jobs():
            self.of_job(job_id).sweep()
        for job_id in self.outputs():
            self.output_of(job_id).sweep()


def artifact_file(store: Store, blobs: BlobFiles, job_id: int, path: str) -> Path | None:
    """Return the file that a job wrote as `path` of its output folder; None if there is none.

    If several tasks of the job wrote it, return that of the first.
    """
    found = store.artifacts.find(job_id, path)
    file = None if found is None else blobs.output_of(job_id).path(found.sha256)
    return file if file is not None and file.is_file() else None


def _is_sound(path: Path) -> bool:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() == path.name


def _sync(path: Path) -> None:
    """Make a file, or a folder's names, survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
