"""Bytes from a rank to the service: pipe -> spool file -> chunks.

The pipe is emptied at once into a file, so a rank never waits for the network and memory stays
bounded; chunks are read back from the file, from whatever offset the service has.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import fcntl
import os
from collections.abc import Callable
from pathlib import Path

from minicluster.wire import StreamChunk

CHUNK_BYTES = 256 * 1024
_READ_BYTES = 1 << 20
_PIPE_BYTES = 1 << 20
_LINE_BYTES = 1 << 20


class Spool:
    """One stream on disk, and how much of it the service holds."""

    def __init__(self, name: str, path: Path) -> None:
        self.name = name
        self.size = 0
        self.acknowledged = 0
        self.lost = ""
        self._file = path.open("w+b", buffering=0)

    @property
    def unsent(self) -> int:
        return self.size - self.acknowledged

    def write(self, data: bytes) -> None:
        """Append. If the disk refuses, the rest of the stream is dropped, and `lost` says why."""
        try:
            while data and not self.lost:
                written = os.pwrite(self._file.fileno(), data, self.size)
                self.size += written
                data = data[written:]
        except OSError as error:
            self.lost = f"The output {self.name} is cut after {self.size} bytes: {error.strerror}."

    def grown(self) -> None:
        """Take over the size of a file to which the rank itself appends."""
        self.size = os.fstat(self._file.fileno()).st_size

    def chunk(self) -> StreamChunk | None:
        """Return the next bytes that the service lacks."""
        if self.unsent <= 0:
            return None
        data = os.pread(self._file.fileno(), min(CHUNK_BYTES, self.unsent), self.acknowledged)
        return StreamChunk(stream=self.name, offset=self.acknowledged, data=base64.b64encode(data))

    def acknowledge(self, size: int) -> None:
        """Take over how much the service holds, even if that is less than before."""
        self.acknowledged = min(size, self.size)

    def close(self) -> None:
        self._file.close()


class Pump:
    """Empties one pipe into a function, as soon as there is something in it."""

    def __init__(self, sink: Callable[[bytes], None]) -> None:
        self._sink = sink
        self._fd, self.write_fd = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self._fd, False)
        # When the user's share of pipe memory is used up, the default size does as well.
        with contextlib.suppress(OSError):
            fcntl.fcntl(self._fd, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)

    def start(self) -> None:
        """Begin to read, after the write end went to the rank."""
        os.close(self.write_fd)
        asyncio.get_running_loop().add_reader(self._fd, self._read)

    def drain(self) -> None:
        """Read what is in the pipe now, even while some process still holds it open."""
        while self._fd >= 0 and self._read():
            pass

    def close(self) -> None:
        if self._fd >= 0:
            asyncio.get_running_loop().remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1

    def _read(self) -> bool:
        try:
            data = os.read(self._fd, _READ_BYTES)
        except BlockingIOError:
            return False
        if not data:
            self.close()
            return False
        self._sink(data)
        return True


class LineSplitter:
    """Cuts what comes from one pipe into whole lines, so that several pipes can share a stream."""

    def __init__(self, sink: Callable[[bytes], None]) -> None:
        self._sink = sink
        self._rest = b""

    def feed(self, data: bytes) -> None:
        lines, newline, self._rest = (self._rest + data).rpartition(b"\n")
        if newline:
            self._sink(lines + newline)
        if len(self._rest) > _LINE_BYTES:  # Not a record of ours; memory stays bounded.
            self._rest = b""
