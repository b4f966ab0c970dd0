"""Pipes between a replica's HTTP server and the process of its model: one process at each end.

LitServe's queues are in a process of their own: each request would go in and out of it, and its answer, too,
which takes longer than a small model does. It also looks into them with a thread for each answer.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import select
import struct
from collections import deque
from math import ceil
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from queue import Empty
from typing import Any

from litserve.transport.base import MessageTransport

_HEAD = struct.Struct("!Q")
_READ_BYTES = 1 << 16
"""What a pipe holds."""


def pipes() -> tuple[RequestPipe, AnswerPipe]:
    """Return the way to the model and the way back. The HTTP server waits at neither in a system call."""
    requests, answers = RequestPipe(*Pipe(duplex=False)), AnswerPipe(*Pipe(duplex=False))
    os.set_blocking(requests.writer.fileno(), False)
    os.set_blocking(answers.reader.fileno(), False)
    return requests, answers


def _packed(item: Any) -> bytes:
    data = pickle.dumps(item, pickle.HIGHEST_PROTOCOL)
    return _HEAD.pack(len(data)) + data


class RequestPipe:
    """Requests: put by the HTTP server in its event loop, got by the process of the model.

    It has the methods of a queue that LitServe's loops call.
    """

    def __init__(self, reader: Connection, writer: Connection) -> None:
        self.reader, self.writer = reader, writer
        self._unsent = bytearray()
        self._poll: select.poll | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return RequestPipe, (self.reader, self.writer)

    def put(self, item: Any) -> None:
        waits = bool(self._unsent)
        self._unsent += _packed(item)
        if not waits:
            self._send()
            if self._unsent:
                asyncio.get_running_loop().add_writer(self.writer.fileno(), self._send_rest)

    def _send(self) -> None:
        try:
            while self._unsent:
                del self._unsent[: os.write(self.writer.fileno(), self._unsent)]
        except BlockingIOError:
            return  # The model is busy.

    def _send_rest(self) -> None:
        """Go on, now that there is room in the pipe."""
        self._send()
        if not self._unsent:
            asyncio.get_running_loop().remove_writer(self.writer.fileno())

    def get(self, timeout: float | None = None) -> Any:
        """Return the next request. Raises Empty. timeout: in seconds."""
        if self._poll is None:
            self._poll = select.poll()
            self._poll.register(self.reader.fileno(), select.POLLIN)
        wait_ms = None if timeout is None else ceil(1000 * timeout)
        if not self._poll.poll(wait_ms):
            raise Empty
        (size,) = _HEAD.unpack(self._read(_HEAD.size))
        return pickle.loads(self._read(size))  # noqa: S301 - it comes from the replica's own process

    def get_nowait(self) -> Any:
        return self.get(timeout=0)

    def _read(self, size: int) -> bytearray:
        """Return exactly so many bytes. There is no end: this process has the other side of the pipe, too."""
        found = bytearray()
        while len(found) < size:
            found += os.read(self.reader.fileno(), min(_READ_BYTES, size - len(found)))
        return found


class AnswerPipe(MessageTransport):
    """Answers: sent by the process of the model, received in the HTTP server's event loop."""

    def __init__(self, reader: Connection, writer: Connection) -> None:
        self.reader, self.writer = reader, writer
        self._begun = bytearray()
        self._whole: deque[Any] = deque()
        self._came: asyncio.Event | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return AnswerPipe, (self.reader, self.writer)

    def send(self, item: Any, consumer_id: int) -> None:
        rest, fd = memoryview(_packed(item)), self.writer.fileno()
        while rest:
            rest = rest[os.write(fd, rest) :]

    async def areceive(self, *_consumer: Any, **_more: Any) -> Any:
        """Return the next answer. There is one HTTP server, and it sets no time limit."""
        if self._came is None:
            self._came = asyncio.Event()
            asyncio.get_running_loop().add_reader(self.reader.fileno(), self._read)
        while not self._whole:
            self._came.clear()
            await self._came.wait()
        return self._whole.popleft()

    def _read(self) -> None:
        try:
            self._begun += os.read(self.reader.fileno(), _READ_BYTES)
        except BlockingIOError:
            return
        while len(self._begun) >= _HEAD.size:
            end = _HEAD.size + _HEAD.unpack_from(self._begun)[0]
            if len(self._begun) < end:
                break
            whole = bytes(self._begun[_HEAD.size : end])
            del self._begun[:end]
            self._whole.append(pickle.loads(whole))  # noqa: S301 - as above
        if self._whole and self._came is not None:
            self._came.set()
