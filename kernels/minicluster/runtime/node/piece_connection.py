"""A connection by which agents fetch pieces of data sets, and cells' parts, at the speed of the link.

httpx runs the event loop for each 32 KB received. This takes more CPU time than all else that an agent does
with them. Here a thread reads the socket, and hashes received bytes while they are in the CPU's cache.
"""

from __future__ import annotations

import asyncio
import hashlib
import select
import ssl
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection, IncompleteRead
from socket import SHUT_RDWR, socket
from typing import TypeVar

import httpx

from minicluster.runtime.agent.client import ServiceUnavailable, check

STEP_BYTES = 1 << 20
_Received = TypeVar("_Received")


class ServiceConnection:
    """One connection with a thread that reads answers."""

    def __init__(self) -> None:
        self._connection: _OpenConnection | None = None

    async def receive(
        self,
        service: httpx.AsyncClient,
        url: str,
        receive: Callable[[HTTPResponse], _Received],
        trust: ssl.SSLContext | None = None,
    ) -> _Received:
        """Return what `receive` makes of an answer's body, in the thread. Errors: see agent/client.py."""
        self._leave_other(service)
        if self._connection is None:
            self._connection = _OpenConnection(service, trust)
        try:
            return await self._connection.get(url, receive)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Abort the transfer; the thread may go on with `receive` for a moment."""
        if self._connection is not None:
            self._connection.cut()
        self._connection = None

    def _leave_other(self, service: httpx.AsyncClient) -> None:
        if self._connection is not None and self._connection.service is not service:
            self.close()


class PieceConnection(ServiceConnection):
    """One connection with a buffer for its last piece, of at most `piece_bytes`."""

    def __init__(self, piece_bytes: int) -> None:
        super().__init__()
        self._piece_bytes = piece_bytes
        self._memory: memoryview | None = None

    async def get(
        self, service: httpx.AsyncClient, url: str, trust: ssl.SSLContext | None = None
    ) -> tuple[memoryview, str]:
        """Return a piece, valid until the next call, and its SHA-256. Errors: see agent/client.py."""
        self._leave_other(service)
        if self._memory is None:
            self._memory = memoryview(bytearray(self._piece_bytes))
        return await self.receive(service, url, partial(_to_memory, self._memory), trust)

    def close(self) -> None:
        """Abort the transfer, and drop the buffer, to which the thread may still write for a moment."""
        super().close()
        self._memory = None


def read_some(answer: HTTPResponse, buffer: memoryview) -> int:
    """Read the next bytes of a body; return their number, 0 at its end. Raises IncompleteRead."""
    count = answer.readinto(buffer)
    if not count and buffer and answer.length != 0 and not answer.chunked:  # None if the head was cut
        raise IncompleteRead(b"", answer.length)
    return count


def _to_memory(memory: memoryview, answer: HTTPResponse) -> tuple[memoryview, str]:
    digest, end = hashlib.sha256(), 0
    while count := read_some(answer, memory[end : end + STEP_BYTES]):
        digest.update(memory[end : end + count])
        end += count
    return memory[:end], digest.hexdigest()


@contextmanager
def piece_connection(piece_bytes: int) -> Iterator[PieceConnection]:
    connection = PieceConnection(piece_bytes)
    try:
        yield connection
    finally:
        connection.close()


class _OpenConnection:
    """A connection to one service, with its own thread: shared threads would wait for slow networks."""

    def __init__(self, service: httpx.AsyncClient, trust: ssl.SSLContext | None) -> None:
        self.service = service
        self._http = _http(service, trust)
        self._http.auto_open = 0  # or a cut connection would reconnect
        self._thread = ThreadPoolExecutor(1, "piece")
        self._is_cut = False
        self._socket: socket | None = None
        """The current socket: `_http` drops it when the server announces that it will close."""

    async def get(self, url: str, receive: Callable[[HTTPResponse], _Received]) -> _Received:
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._get, url, receive)

    def cut(self) -> None:
        """End the thread and its transfer."""
        self._is_cut = True
        self._thread.shutdown(wait=False, cancel_futures=True)
        if self._socket is not None:
            with suppress(OSError):
                self._socket.shutdown(SHUT_RDWR)
        self._http.close()

    def _get(self, url: str, receive: Callable[[HTTPResponse], _Received]) -> _Received:
        request = self.service.build_request("GET", url, headers={"Accept-Encoding": "identity"})
        try:
            self._open()
            self._http.request("GET", request.url.raw_path.decode(), headers=dict(request.headers))
            with self._http.getresponse() as answer:
                if answer.status != httpx.codes.OK:
                    check(httpx.Response(answer.status, content=answer.read()))
                received = receive(answer)
                if not answer.isclosed():  # longer than what was expected: the hash will be wrong
                    self._http.close()
                return received
        except (OSError, HTTPException) as error:
            raise ServiceUnavailable(f"The job service does not answer: {error!r}.") from error

    def _open(self) -> None:
        """Connect if the connection is new or the other end has closed it."""
        http = self._http
        if http.sock is not None and select.select([http.sock], [], [], 0)[0]:
            http.close()
        if http.sock is None:
            http.connect()
            self._socket = http.sock
        if self._is_cut or http.sock is None:
            http.close()
            raise ConnectionAbortedError("cut while it connected")
        http.sock.settimeout(self.service.timeout.read)


def _http(service: httpx.AsyncClient, trust: ssl.SSLContext | None) -> HTTPConnection:
    url, timeout_s = service.base_url, service.timeout.connect
    if url.scheme == "https":
        trust = trust or httpx.create_ssl_context(trust_env=False)  # as in the service's httpx client
        return HTTPSConnection(url.host, url.port or 443, timeout=timeout_s, context=trust)
    return HTTPConnection(url.host, url.port or 80, timeout=timeout_s)
