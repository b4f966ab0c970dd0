"""The output of jobs: append-only files, read by offset, one for each stream of each attempt.

A file's size alone says how much is stored. So a restart of the service or a repeated message neither loses
nor doubles output.
"""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path

from minicluster.wire import FILE_BYTES
from minicluster_hub.support.disk_errors import NotKept
from minicluster_hub.support.notifier import Notifier, Subscription

_STREAM = re.compile(r"(?:rank|display|agent)-\d{1,5}|records")
_SUFFIX = ".log"
_CUT_SUFFIX = ".cut"
_REMEMBERED = 10_000
NO_LIMIT = 1 << 62
_RECORDS_BYTES = 1 << 16
_SAME_MOMENT_S = 0.05


class LogError(Exception):
    """Base of the logs' errors."""


class StreamUnknown(LogError):
    """No agent uses a stream of that name; it never becomes a path."""

    def __init__(self, stream: str) -> None:
        super().__init__(f"there is no stream {stream!r}; streams are rank-N, display-N, records and agent-N")


class LogNotKept(NotKept, LogError):
    """The disk refused some output. The agent still has it, and sends it again."""


class JobLogs:
    """All streams under one folder: JOB/ATTEMPT/STREAM.log, with the attempt's number, not its id.

    `changes` notifies of each append by the job's id. To be used in the service's event loop only.
    limit_bytes: of one stream. Output beyond it is accepted and dropped: the file grows by a hole, so that
    its size still says which output arrived. A stream that was cut has a lower limit, in a file beside it.
    """

    def __init__(self, root: Path, limit_bytes: int = NO_LIMIT) -> None:
        self.changes = Notifier()
        self.limit_bytes = limit_bytes
        self._root = root
        self._limits: dict[Path, int] = {}
        self._costs: dict[int, int] = {}
        self._seen: dict[tuple[int, int], tuple[float, Mapping[str, int]]] = {}

    def append(self, job_id: int, attempt: int, stream: str, offset: int, data: bytes) -> int:
        """Append the new part of `data`, which begins at byte `offset` of the stream; return the new size.

        Data that begins beyond the end is dropped: it would leave a gap. Raises LogNotKept.
        """
        path = self._path(job_id, attempt, stream)
        limit, cost = self._limit(path), self.cost_bytes(job_id)
        try:
            before, size = _append(path, offset, data, limit)
        except OSError as error:
            raise LogNotKept(f"output of job {job_id} was not kept in {path}", error) from error
        if size > before:
            self._seen.pop((job_id, attempt), None)
            self._costs[job_id] = (
                cost + _cost(min(size, limit)) - (_cost(min(before, limit)) if before else 0)
            )
            self.changes.notify(job_id)
        return size

    def cut(self, job_id: int, attempt: int, stream: str) -> None:
        """Drop all later output of a stream. Raises LogNotKept."""
        path = self._path(job_id, attempt, stream)
        try:
            size = path.stat().st_size if path.exists() else 0
            if size < self._limit(path):
                path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                path.with_suffix(_CUT_SUFFIX).write_text(str(size))
                self._limits[path] = size
        except OSError as error:
            raise LogNotKept(f"output of job {job_id} was not cut in {path}", error) from error

    def is_cut(self, job_id: int, attempt: int, stream: str) -> bool:
        return self._limit(self._path(job_id, attempt, stream)) < self.limit_bytes

    def cost_bytes(self, job_id: int) -> int:
        """Return the bytes that a job's output counts for the quota: at least 4 KB a file."""
        if job_id not in self._costs:
            if len(self._costs) >= _REMEMBERED:
                self._costs.clear()
            files = self._root.glob(f"{int(job_id)}/*/*{_SUFFIX}")
            self._costs[job_id] = sum(_cost(min(path.stat().st_size, self._limit(path))) for path in files)
        return self._costs[job_id]

    def size(self, job_id: int, attempt: int, stream: str) -> int:
        """Return how many bytes of a stream can be read; 0 when it has none yet."""
        path = self._path(job_id, attempt, stream)
        try:
            return min(self._limit(path), path.stat().st_size)
        except FileNotFoundError:
            return 0

    def sizes(self, job_id: int, attempt: int) -> dict[str, int]:
        """Return the size of each stream of an attempt by name, with the output dropped at its end."""
        try:
            with os.scandir(self._folder(job_id, attempt)) as entries:
                logs = (entry for entry in entries if entry.name.endswith(_SUFFIX))
                found = {entry.name.removesuffix(_SUFFIX): entry.stat().st_size for entry in logs}
        except FileNotFoundError:
            return {}
        return dict(sorted(found.items()))

    def readable(self, job_id: int, attempt: int) -> Mapping[str, int]:
        """Return how many bytes of each stream of an attempt can be read, by name.

        Hundreds of readers may follow a job with hundreds of streams: a result is cached for _SAME_MOMENT_S.
        """
        now = time.monotonic()
        self._seen = {key: seen for key, seen in self._seen.items() if now - seen[0] < _SAME_MOMENT_S}
        if (job_id, attempt) not in self._seen:
            sizes, folder = self.sizes(job_id, attempt), self._folder(job_id, attempt)
            found = {
                name: min(self._limit(folder / f"{name}{_SUFFIX}"), size) for name, size in sizes.items()
            }
            self._seen[job_id, attempt] = now, found
        return self._seen[job_id, attempt][1]

    def read(self, job_id: int, attempt: int, stream: str, offset: int, limit: int) -> bytes:
        """Return at most `limit` bytes from `offset` on; empty at the end."""
        path = self._path(job_id, attempt, stream)
        limit = max(0, min(limit, self._limit(path) - offset))
        try:
            with path.open("rb", buffering=0) as file:
                return os.pread(file.fileno(), limit, offset)
        except FileNotFoundError:
            return b""

    def last_records(self, job_id: int, attempt: int) -> bytes:
        """Return the end of the records of the first node's ranks; its first line may be incomplete."""
        begin = max(0, self.size(job_id, attempt, "records") - _RECORDS_BYTES)
        return self.read(job_id, attempt, "records", begin, _RECORDS_BYTES)

    def subscribe(
        self, job_id: int, into: Subscription | None = None
    ) -> AbstractAsyncContextManager[Subscription]:
        """Subscribe to a job's appends: `async with logs.subscribe(7) as appends: await appends.wait(15)`.

        Read the log after entering the block: earlier appends do not notify. into: a subscription to another
        notifier, so that one wait covers both.
        """
        return self.changes.listen(job_id, into=into)

    def jobs(self) -> list[int]:
        """Return the ids of the jobs that have output."""
        return sorted(int(path.name) for path in self._root.glob("*") if path.name.isdecimal())

    def remove(self, job_id: int) -> None:
        """Delete all output of a job."""
        shutil.rmtree(self._root / str(int(job_id)), ignore_errors=True)
        self._costs.pop(job_id, None)

    def _limit(self, path: Path) -> int:
        """Return a stream's limit in bytes."""
        if path not in self._limits:
            if len(self._limits) >= _REMEMBERED:
                self._limits.clear()
            cut = path.with_suffix(_CUT_SUFFIX)
            self._limits[path] = min(
                self.limit_bytes, int(cut.read_text() or 0) if cut.exists() else NO_LIMIT
            )
        return self._limits[path]

    def _folder(self, job_id: int, attempt: int) -> Path:
        return self._root / str(int(job_id)) / str(int(attempt))

    def _path(self, job_id: int, attempt: int, stream: str) -> Path:
        if not _STREAM.fullmatch(stream):
            raise StreamUnknown(stream)
        return self._folder(job_id, attempt) / f"{stream}{_SUFFIX}"


def _cost(size_bytes: int) -> int:
    return max(FILE_BYTES, size_bytes)


def _append(path: Path, offset: int, data: bytes, limit_bytes: int) -> tuple[int, int]:
    """Append up to the limit; return the file's size before and after."""
    file = _open(path)
    try:
        size = os.fstat(file).st_size
        new = memoryview(data)[size - offset :] if offset <= size else memoryview(b"")
        size_now = size
        end = size + len(new)
        new = new[: max(0, limit_bytes - size)]
        while new:
            written = os.write(file, new)
            size_now += written
            new = new[written:]
        if end > size_now:
            os.ftruncate(file, end)
        return size, end
    finally:
        os.close(file)


def _open(path: Path) -> int:
    """Open for appending, for the service's user only; make the folders if they are missing."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
    try:
        return os.open(path, flags, 0o600)
    except FileNotFoundError:
        # mkdir applies its mode to the last folder of a path only.
        path.parent.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.parent.mkdir(mode=0o700, exist_ok=True)
        return os.open(path, flags, 0o600)
