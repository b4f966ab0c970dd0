"""The Docker API for an event loop: docker-py in a pool of threads, its errors sorted by what to do about
them.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any, Self, TypeVar

from minicluster_hub.engines.base import EngineError

_THREADS = 8
_TIMEOUT_S, _LOGS_TIMEOUT_S = 30, 3.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 2.0
_Result = TypeVar("_Result")


class DockerError(EngineError):
    """Base of what Docker's API answers instead of a result. message: in the daemon's words."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class DockerUnavailable(DockerError):
    """The daemon does not answer, or the Swarm has no leader just now. That passes."""


class DockerMissing(DockerError):
    """There is no such object."""


class DockerConflict(DockerError):
    """An object of that name is there already, or is in use."""


class DockerRefused(DockerError):
    """The request itself is wrong."""


class Docker:
    """One daemon. Its calls run in threads of their own, so that no slow one holds up the others."""

    def __init__(self, connect: Callable[[], Any], retry_s: float) -> None:
        self._connect = connect
        self._connected: Any = None
        self._connecting = threading.Lock()
        self._retry_s = retry_s
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="docker")

    @classmethod
    def connect(cls, url: str | None = None, *, retry_s: float = 10.0) -> Self:
        """Return a client for $DOCKER_HOST or the socket of this machine. Nothing is sent yet.

        retry_s: how long a call is repeated while the daemon or the Swarm's leader is away.
        """
        from docker import APIClient
        from docker.utils import kwargs_from_env

        environment = kwargs_from_env() | ({"base_url": url} if url else {})
        # The newest version that both sides know, asked of the daemon at the first call.
        more = {"version": "auto", "timeout": _TIMEOUT_S, "num_pools": _THREADS}
        return cls(lambda: APIClient(**environment, **more), retry_s)

    async def call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method of docker-py's APIClient. Raises DockerError.

        A call whose answer was lost is repeated, though it may have worked. So a caller that creates
        something takes DockerConflict for success, and one that removes something DockerMissing.
        """
        deadline = time.monotonic() + self._retry_s
        pause_s = _FIRST_PAUSE_S
        while True:
            try:
                return await self._once(method, *args, **kwargs)
            except DockerUnavailable:
                if time.monotonic() + pause_s > deadline:
                    raise
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    async def _once(self, method: str, *args: Any, **kwargs: Any) -> Any:
        def work() -> Any:
            return getattr(self.client(), method)(*args, **kwargs)

        try:
            return await asyncio.get_running_loop().run_in_executor(self._pool, work)
        except Exception as error:
            raise translated(error) from error

    async def with_retries(self, make: Callable[[], Awaitable[_Result]], log: logging.Logger) -> _Result:
        """Make something, however long Docker is away: nothing can be ended without it either."""
        while True:
            try:
                return await make()
            except DockerUnavailable as error:
                log.warning("a start waits for Docker: %s", error)
                await asyncio.sleep(_LONGEST_PAUSE_S)

    async def create(self, method: str, **spec: Any) -> None:
        """Call a method that creates an object whose name holds our id: one of that name is ours already."""
        with suppress(DockerConflict):
            await self.call(method, **spec)

    async def remove(self, method: str, name: str) -> None:
        """Call a method that removes an object; one that is gone already is fine."""
        with suppress(DockerMissing):
            await self.call(method, name)

    async def logs(self, service: str, lines: int, log: logging.Logger) -> str:
        """Return the last lines that a service's tasks have printed; "" if they cannot be had soon."""
        options = {"stdout": True, "stderr": True, "tail": lines, "is_tty": True}
        try:
            async with asyncio.timeout(_LOGS_TIMEOUT_S):
                parts = await self.call("service_logs", service, **options)
                chunks = await asyncio.get_running_loop().run_in_executor(self._pool, list, parts)
        except (DockerError, TimeoutError) as error:
            log.info("the log of %s cannot be had: %s", service, error)
            return ""
        return _without_frame_headers(b"".join(chunks)).decode(errors="replace")

    def watch(self, kind: str, on_event: Callable[[], None]) -> EventWatch:
        """Call `on_event` in this event loop at each of the daemon's events of that kind."""
        return EventWatch(self.client, kind, on_event)

    def client(self) -> Any:
        """Return docker-py's client; blocks at the first call. Raises docker-py's errors."""
        with self._connecting:
            if self._connected is None:
                self._connected = self._connect()
            return self._connected

    def close(self) -> None:
        """Let go of the connections; calls under way are not waited for."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        if self._connected is not None:
            self._connected.close()


class EventWatch:
    """The daemon's events, heard by a thread; after an interruption it listens again."""

    def __init__(self, client: Callable[[], Any], kind: str, on_event: Callable[[], None]) -> None:
        self._client = client
        self._kind = kind
        self._notify = partial(asyncio.get_running_loop().call_soon_threadsafe, on_event)
        self._over = threading.Event()
        self._stream: Any = None
        threading.Thread(target=self._listen, name="docker-events", daemon=True).start()

    def close(self) -> None:
        self._over.set()
        if self._stream is not None:
            self._stream.close()

    def _listen(self) -> None:
        while not self._over.is_set():
            # Whatever ends the stream (a restart of the daemon, close), the answer is to listen again.
            with suppress(Exception):
                self._stream = self._client().events(filters={"type": [self._kind]})
                self._notify()  # of what happened while nobody listened
                for _ in self._stream:
                    self._notify()
            self._over.wait(_LONGEST_PAUSE_S)


def translated(error: Exception) -> DockerError:
    """Return docker-py's error as one of ours."""
    from docker.errors import APIError, DockerException
    from requests.exceptions import RequestException

    if isinstance(error, APIError):
        status = error.response.status_code if error.response is not None else 500
        message = str(error.explanation or error)
        if isinstance(message, bytes):
            message = message.decode(errors="replace")
        return _error_class(status)(message.strip())
    if isinstance(error, RequestException | DockerException | OSError):
        return DockerUnavailable(f"the Docker daemon does not answer: {error}")
    raise error


def _error_class(status: int) -> type[DockerError]:
    if status >= 500:
        return DockerUnavailable
    return {404: DockerMissing, 409: DockerConflict}.get(status, DockerRefused)


def _without_frame_headers(data: bytes) -> bytes:
    """Take the 8-byte headers out of a multiplexed log: stream, three zeros, length of the frame."""
    text, at = bytearray(), 0
    while at + 8 <= len(data) and data[at] in (0, 1, 2) and data[at + 1 : at + 4] == b"\0\0\0":
        size = int.from_bytes(data[at + 4 : at + 8], "big")
        text += data[at + 8 : at + 8 + size]
        at += 8 + size
    return bytes(text) + data[at:]
