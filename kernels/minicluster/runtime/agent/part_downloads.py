"""Brings large parts of cells to a task: by a link to the job service's own file, or over the network."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import os
import tempfile
from collections.abc import Collection, Iterator
from contextlib import suppress
from functools import partial
from http.client import HTTPResponse
from pathlib import Path

from minicluster.errors import MiniclusterError
from minicluster.runtime.agent.client import (
    AgentClient,
    ServiceRefused,
    ServiceUnavailable,
    with_retries,
)
from minicluster.runtime.node.piece_connection import STEP_BYTES, ServiceConnection, read_some
from minicluster.runtime.rank.parts import PartStore
from minicluster.runtime.settings import AgentSettings

KEPT_BYTES = 2 << 30
"""Limit for parts of earlier cells; beyond it, the least recently used ones are removed."""

_AT_ONCE = 4
_FULL = (errno.ENOSPC, errno.EDQUOT)
_UNFINISHED = ".new"


class PartDownloads:
    """Fetches parts into a task's store, each one once, though a cell may ask for what is on its way."""

    def __init__(self, settings: AgentSettings, client: AgentClient, kept_bytes: int = KEPT_BYTES) -> None:
        self._store = PartStore(settings.scratch)
        self._service_blobs = settings.service_blobs
        self._client = client
        self._kept_bytes = kept_bytes
        self._on_way: dict[str, asyncio.Event] = {}
        self._announced: frozenset[str] = frozenset()
        self._coming: list[str] = []
        self._prefetching: asyncio.Task[None] | None = None

    def prefetch(self, parts: Collection[str]) -> None:
        """Begin to fetch parts for a cell that may come. What fails is fetched when the cell asks for it."""
        if self._service_blobs:  # What this machine has already is linked in no time.
            return
        self._coming += [one for one in parts if one not in self._announced]
        self._announced = frozenset(parts)
        if self._coming and (self._prefetching is None or self._prefetching.done()):
            self._prefetching = asyncio.create_task(self._prefetch())

    def close(self) -> None:
        if self._prefetching is not None:
            self._prefetching.cancel()

    async def _prefetch(self) -> None:
        while self._coming:
            parts, self._coming = self._coming, []
            with suppress(OSError, MiniclusterError):
                await self._bring(parts, ServiceRefused)

    async def fetch_missing(self, parts: Collection[str]) -> None:
        """Fetch missing parts. Raises ServiceRefused, OSError.

        If the disk is full, remove parts of earlier cells.
        """
        try:
            await self._bring(parts)
        except OSError as error:
            if error.errno not in _FULL:
                raise
            await asyncio.to_thread(self._make_room, parts, 0)
            await self._fetch(parts)

    async def _bring(self, parts: Collection[str], *ignored: type[Exception]) -> None:
        self._store.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        await asyncio.to_thread(self._make_room, parts, self._kept_bytes)
        await asyncio.to_thread(self._link, parts)
        await self._fetch(parts, *ignored)

    def _link(self, parts: Collection[str]) -> None:
        """Link the job service's own files, which it has checked, where this machine has them."""
        blobs = Path(self._service_blobs)
        for sha256 in parts if self._service_blobs else ():
            # There already, removed by the service, or on another file system: then it is downloaded.
            with suppress(OSError):
                os.link(blobs / sha256[:2] / sha256, self._store.path(sha256))

    async def _fetch(self, parts: Collection[str], *ignored: type[Exception]) -> None:
        waiting = [one for one in parts if not self._store.path(one).exists()][::-1]

        async def fetch() -> None:
            connection = ServiceConnection()
            try:
                while waiting:
                    with suppress(*ignored):
                        await self._fetch_once(waiting.pop(), connection)
            finally:
                connection.close()

        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(min(_AT_ONCE, len(waiting))):
                    group.create_task(fetch())
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None

    async def _fetch_once(self, sha256: str, connection: ServiceConnection) -> None:
        """Fetch a part, or wait for who fetches it already."""
        while (arrived := self._on_way.get(sha256)) is not None:
            await arrived.wait()
        if self._store.path(sha256).exists():
            return
        arrived = self._on_way[sha256] = asyncio.Event()
        try:
            await with_retries(partial(self._fetch_one, sha256, connection))
        finally:
            del self._on_way[sha256]
            arrived.set()

    async def _fetch_one(self, sha256: str, connection: ServiceConnection) -> None:
        url, receive = f"api/tasks/blobs/{sha256}", partial(_to_file, self._store.folder)
        try:
            path, found = await self._client.receive(url, connection, receive)
        except _NotWritten as error:
            raise error.reason from error
        if found != sha256:
            path.unlink()
            raise ServiceUnavailable(f"The blob {sha256[:12]} arrived damaged.")
        path.replace(self._store.path(sha256))

    def _make_room(self, used: Collection[str], kept_bytes: int) -> None:
        """Remove the least recently used parts of earlier cells, beyond `kept_bytes`."""
        for one in used:
            if self._store.path(one).exists():
                os.utime(self._store.path(one))
        room = kept_bytes
        for path, stat in sorted(self._others(used), key=lambda found: -found[1].st_mtime):
            if path.suffix:
                if not self._on_way:  # Otherwise it may be one that is being written.
                    path.unlink(missing_ok=True)
                continue
            room -= stat.st_size
            if room < 0:
                path.unlink(missing_ok=True)

    def _others(self, used: Collection[str]) -> Iterator[tuple[Path, os.stat_result]]:
        for path in self._store.folder.iterdir():
            # The thread of a cancelled download may remove its own file meanwhile.
            with suppress(FileNotFoundError):
                if path.name not in used:
                    yield path, path.stat()


class _NotWritten(Exception):
    """This machine's disk refused a part; other errors of the same type come from the network."""

    def __init__(self, reason: OSError) -> None:
        super().__init__(str(reason))
        self.reason = reason


def _to_file(folder: Path, answer: HTTPResponse) -> tuple[Path, str]:
    """Write an answer's body to a new file; return its path and its SHA-256."""
    digest, buffer = hashlib.sha256(), memoryview(bytearray(STEP_BYTES))
    try:
        # A name of its own: the thread of a cancelled download may still write to another one.
        descriptor, name = tempfile.mkstemp(suffix=_UNFINISHED, dir=folder)
    except OSError as error:
        raise _NotWritten(error) from error
    try:
        with os.fdopen(descriptor, "wb", buffering=0) as file:
            while count := read_some(answer, buffer):
                digest.update(buffer[:count])
                _write(file.fileno(), buffer[:count])
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    return Path(name), digest.hexdigest()


def _write(descriptor: int, data: memoryview) -> None:
    try:
        while data:
            data = data[os.write(descriptor, data) :]
    except OSError as error:
        raise _NotWritten(error) from error
