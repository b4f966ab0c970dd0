"""A task's cache of large parts of cells, for the owner's next cell on the same gang.

It is in the task's scratch folder, which belongs to one owner's gang and is removed with it. So no other
user's cell reads or writes it.
"""

from __future__ import annotations

import asyncio
import ctypes
import errno
import mmap
import os
import weakref
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from minicluster.runtime.agent.client import AgentClient

KEPT_BYTES = 2 << 30
"""Limit for parts of earlier cells; beyond it, the least recently used ones are removed."""
_AT_ONCE = 4
_FULL = (errno.ENOSPC, errno.EDQUOT)

_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.mmap.restype = ctypes.c_void_p
_LIBC.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
_LIBC.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_FAILED = ctypes.c_void_p(-1).value


class PartStore:
    """A task's parts by their SHA-256; each is complete and its hash was checked."""

    def __init__(self, scratch: Path, kept_bytes: int = KEPT_BYTES) -> None:
        self._folder = scratch / "parts"
        self._kept_bytes = kept_bytes

    def path(self, sha256: str) -> Path:
        return self._folder / sha256

    async def fetch_missing(self, parts: Collection[str], client: AgentClient) -> None:
        """Fetch missing parts. Raises ServiceRefused, OSError.

        If the disk is full, remove parts of earlier cells.
        """
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        await asyncio.to_thread(self._make_room, parts, self._kept_bytes)
        try:
            await self._fetch(parts, client)
        except OSError as error:
            if error.errno not in _FULL:
                raise
            await asyncio.to_thread(self._make_room, parts, 0)
            await self._fetch(parts, client)

    async def _fetch(self, parts: Collection[str], client: AgentClient) -> None:
        gate = asyncio.Semaphore(_AT_ONCE)

        async def fetch(sha256: str) -> None:
            async with gate:
                fresh = self.path(sha256).with_suffix(".new")
                await client.fetch(sha256, fresh)
                fresh.replace(self.path(sha256))

        missing = [one for one in parts if not self.path(one).exists()]
        try:
            # If one fails, cancel all: none may still write to a file that a retry writes.
            async with asyncio.TaskGroup() as group:
                for one in missing:
                    group.create_task(fetch(one))
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None

    def memory(self, sha256: str) -> memoryview:
        """Return a part without reading it yet. Writes to the memory are private to this process."""
        return memory_of(self.path(sha256))

    def _make_room(self, used: Collection[str], kept_bytes: int) -> None:
        """Remove the least recently used parts of earlier cells, beyond `kept_bytes`."""
        for one in used:
            if self.path(one).exists():
                os.utime(self.path(one))
        others = [path for path in self._folder.iterdir() if path.name not in used]
        room = kept_bytes
        for path in sorted(others, key=lambda path: -path.stat().st_mtime):
            room -= path.stat().st_size
            if room < 0 or path.suffix:
                path.unlink()


# Maps files as private memory: processes of a node share one copy of each page that they do not write to.
# Python's mmap would keep a descriptor open for each file, and a model may have a thousand files.
# Files must not be truncated or overwritten while mapped; a new file replaces an old one.


def memory_of(path: Path) -> memoryview:
    """Map a file. Writes to the memory are private to this process. Raises OSError."""
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        access = mmap.PROT_READ | mmap.PROT_WRITE
        address = _LIBC.mmap(None, size, access, mmap.MAP_PRIVATE, file.fileno(), 0)
    if address == _FAILED:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(path))
    memory = (ctypes.c_char * size).from_address(address)
    # Not at exit: other exit handlers may still read the memory.
    weakref.finalize(memory, _LIBC.munmap, address, size).atexit = False
    return memoryview(memory).cast("B")
