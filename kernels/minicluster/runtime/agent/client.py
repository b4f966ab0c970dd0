"""The agent's calls to the job service. Each can be repeated."""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from http.client import HTTPResponse
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import httpx
from pydantic_core import PydanticSerializationError

from minicluster.errors import MiniclusterError
from minicluster.wire import (
    VERSION_HEADER,
    WIRE_VERSION,
    BlobInfo,
    ErrorAnswer,
    ReportAnswer,
    SmallFiles,
    TaskOrders,
    TaskReport,
)
from minicluster.wire.files.compile_caches import CompileCache, CompiledEntries
from minicluster.wire.sessions import CellOrder, CellProgress, NextCell
from minicluster.wire.sweeps.trials import (
    DrawAhead,
    DrawnParameters,
    LeaveTrial,
    SuggestedParameter,
    SuggestParameter,
)

if TYPE_CHECKING:
    from minicluster.runtime.node.piece_connection import ServiceConnection

JSON = {"Content-Type": "application/json"}
_HOLD_S = 25.0
"""How long the service holds a request for orders until they change."""
_TIMEOUT = httpx.Timeout(10.0, connect=1.5)
"""Shorter than the kernel's pauses between two tries to connect to a machine that does not answer."""
_QUICK_TIMEOUT = httpx.Timeout(3.0, connect=1.0)
"""If there are several services: when this one is frozen, another one leads. On the way there a machine may
be off; with the wait for the next try, that is less silence than counts as a lost agent."""
LONG_TIMEOUT = httpx.Timeout(10.0, read=_HOLD_S + 10.0)
_LIMITS = httpx.Limits(keepalive_expiry=60.0)
"""A connection stays for the next call: a new one begins with TLS."""
_PIECE_BYTES = 1 << 20
_COMPILED = "api/tasks/compile-cache"
_SLOW_DISK_BYTES_PER_S = 20e6
_Answer = TypeVar("_Answer")


class ServiceUnavailable(MiniclusterError):
    """The service did not answer, or answered 5xx, 408 or 429: try again later."""


class BlobDamaged(ServiceUnavailable):
    """A blob does not have the hash of its name: it was damaged on its way, or on the service's disk."""


class ServiceRefused(MiniclusterError):
    """The service refused the request; the same request would be refused again."""


class TaskEnded(MiniclusterError):
    """The service says that this task has ended: its agent ends, with all processes of the task."""


class Backoff:
    """Waits that grow from 0.1 s to 1 s, with jitter, so that agents do not all ask at once.

    Not longer: a service that is back would take an agent that still waits for a lost one.
    """

    def __init__(self) -> None:
        self._next_s = 0.1

    async def wait(self) -> None:
        wait_s = self._next_s * random.uniform(0.7, 1.0)
        self._next_s = min(1.0, self._next_s * 2)
        await asyncio.sleep(wait_s)

    def reset(self) -> None:
        self._next_s = 0.1


async def with_retries(call: Callable[[], Awaitable[_Answer]]) -> _Answer:
    """Repeat a call as long as the service is unavailable."""
    backoff = Backoff()
    while True:
        try:
            return await call()
        except ServiceUnavailable:
            await backoff.wait()


class AgentClient:
    """Connections to the service, with the task's token. All methods raise the three errors above.

    service_urls: of all job services, of which one leads and the others refuse. If one is unavailable, the
    client changes to the next one, also for the calls that still wait for the former one.
    trust: what verifies them; None: the authorities that browsers know.
    """

    def __init__(
        self,
        service_urls: Sequence[str],
        token: str,
        scheme: str = "task",
        trust: ssl.SSLContext | None = None,
    ) -> None:
        self._services = [
            httpx.AsyncClient(
                base_url=url,
                headers={"Authorization": f"{scheme} {token}", VERSION_HEADER: str(WIRE_VERSION)},
                timeout=_TIMEOUT if len(service_urls) == 1 else _QUICK_TIMEOUT,
                # Without TLS the certificates need not be loaded, which costs time and 5 MB.
                verify=url.startswith("https:") and (trust or True),
                limits=_LIMITS,
                trust_env=False,
            )
            for url in service_urls
        ]
        self._trust = trust
        self._at = 0
        self._left = asyncio.Event()
        """Set, and replaced by a new event, when the client changes to the next service."""

    async def report(self, report: TaskReport) -> ReportAnswer:
        answer = await self._ask("POST", "api/tasks/report", content=_json_of(report), headers=JSON)
        return ReportAnswer.model_validate_json(answer.content)

    async def orders(self, have: str) -> TaskOrders:
        """Return the orders when they differ from `have`, or after some time the same ones."""
        answer = await self._ask("GET", "api/tasks/orders", params={"have": have}, timeout=LONG_TIMEOUT)
        return TaskOrders.model_validate_json(answer.content)

    async def suggest(self, asked: SuggestParameter) -> SuggestedParameter:
        """Return a parameter of the trial that an attempt runs."""
        body = asked.model_dump_json()
        answer = await self._ask("POST", "api/tasks/suggest", content=body, headers=JSON)
        return SuggestedParameter.model_validate_json(answer.content)

    async def draw_ahead(self, asked: DrawAhead) -> DrawnParameters:
        """Return what a trial will probably ask for."""
        body = asked.model_dump_json()
        answer = await self._ask("POST", "api/tasks/draw-ahead", content=body, headers=JSON)
        return DrawnParameters.model_validate_json(answer.content)

    async def next_cell(self, progress: CellProgress) -> CellOrder | None:
        """Report how a session's cell ended; return the next one, or None after some time without."""
        body = progress.model_dump_json()
        answer = await self._ask("POST", "api/tasks/cells", content=body, headers=JSON, timeout=LONG_TIMEOUT)
        return NextCell.model_validate_json(answer.content).cell

    async def leave(self, asked: LeaveTrial) -> None:
        """Report that a rank leaves its pruned trial."""
        await self._ask("POST", "api/tasks/leave", content=asked.model_dump_json(), headers=JSON)

    async def fetch(self, sha256: str, path: Path, kind: str = "blobs") -> None:
        """Write a blob to a file, its hash checked, however long the service is unavailable.

        kind: "blobs" or "snapshots".
        """
        url = f"api/tasks/{kind}/{sha256}"
        await with_retries(lambda: self._of_any(lambda service: _fetch(service, url, sha256, path)))

    async def receive(
        self, url: str, connection: ServiceConnection, receive: Callable[[HTTPResponse], _Answer]
    ) -> _Answer:
        """Return what `receive` makes of an answer that comes over this connection."""
        return await self._of_any(lambda service: connection.receive(service, url, receive, self._trust))

    async def compile_cache(self, environment: str) -> CompileCache:
        """Return what there is of the owner's compiled code."""
        answer = await self._ask("GET", _COMPILED, params={"environment": environment})
        return CompileCache.model_validate_json(answer.content)

    async def fetch_compiled(self, environment: str, sha256: str, path: Path) -> None:
        """Write a piece of a compile cache to a file. Raises BlobDamaged."""
        url = f"{_COMPILED}/{sha256}?environment={environment}"
        await self._of_any(lambda service: _fetch(service, url, sha256, path))

    async def offer_compiled(self, entries: CompiledEntries) -> tuple[str, ...]:
        """Return which entries the service wants."""
        body = entries.model_dump_json()
        answer = await self._ask("POST", _COMPILED, content=body, headers=JSON)
        return CompiledEntries.model_validate_json(answer.content).entries

    async def send_compiled(self, environment: str, path: Path) -> BlobInfo:
        """Add a file to a compile cache."""
        sha256 = await asyncio.to_thread(_digest, path)
        size = path.stat().st_size  # noqa: ASYNC240 - a local disk
        return await self.send(f"{_COMPILED}/{sha256}?environment={environment}", size, _pieces(path))

    async def upload(self, path: Path) -> BlobInfo:
        """Send a file as a blob."""
        sha256 = await asyncio.to_thread(_digest, path)
        size = path.stat().st_size  # noqa: ASYNC240 - a local disk
        return await self.send(f"api/tasks/blobs/{sha256}", size, _pieces(path))

    async def send_small(self, files: SmallFiles) -> None:
        """Send several files of the output folder at once."""
        body = files.model_dump_json()
        await self._ask("POST", "api/tasks/files", content=body, headers=JSON, timeout=LONG_TIMEOUT)

    async def send(self, url: str, size_bytes: int, pieces: Iterable[bytes]) -> BlobInfo:
        """Send pieces of bytes as a blob, `size_bytes` long in all."""
        request = {
            "content": _in_turn(pieces),
            "headers": {"Content-Length": str(size_bytes), "Content-Type": "application/octet-stream"},
            # The service answers after it has synced everything to its disk.
            "timeout": httpx.Timeout(
                30.0, connect=1.5, read=_HOLD_S + 10.0 + size_bytes / _SLOW_DISK_BYTES_PER_S
            ),
        }
        # The pieces can be read once, so only one service is asked; the caller tries again.
        answer = await self._of_any(lambda service: _ask(service, "PUT", url, **request), tries=1)
        return BlobInfo.model_validate_json(answer.content)

    async def close(self) -> None:
        for service in self._services:
            await service.aclose()

    async def _ask(self, method: str, url: str, **request: object) -> httpx.Response:
        return await self._of_any(lambda service: _ask(service, method, url, **request))

    async def _of_any(
        self, ask: Callable[[httpx.AsyncClient], Awaitable[_Answer]], tries: int | None = None
    ) -> _Answer:
        """Ask the service that answered last, then each of the others once."""
        if len(self._services) == 1:
            return await ask(self._services[0])
        unavailable = ServiceUnavailable("The job service does not answer.")
        for _ in range(tries or len(self._services)):
            at = self._at
            try:
                return await self._until_left(ask(self._services[at]))
            except ServiceUnavailable as error:
                unavailable = error
            if self._at == at:
                self._at = (at + 1) % len(self._services)
                self._left.set()
                self._left = asyncio.Event()
        raise unavailable

    async def _until_left(self, asking: Awaitable[_Answer]) -> _Answer:
        """Return the answer, or raise ServiceUnavailable once another call has left this service."""
        works = asyncio.ensure_future(asking), asyncio.ensure_future(self._left.wait())
        try:
            await asyncio.wait(works, return_when=asyncio.FIRST_COMPLETED)
            if works[0].done():
                return works[0].result()
            raise ServiceUnavailable("The job service was left for another one.")
        finally:
            for work in works:
                work.cancel()
            await asyncio.gather(*works, return_exceptions=True)


async def _ask(service: httpx.AsyncClient, method: str, url: str, **request: object) -> httpx.Response:
    try:
        answer = await service.request(method, url, **request)  # type: ignore[arg-type]
    except httpx.HTTPError as error:
        raise ServiceUnavailable(f"The job service does not answer: {error!r}.") from error
    check(answer)
    return answer


async def _fetch(service: httpx.AsyncClient, url: str, sha256: str, path: Path) -> None:
    digest = hashlib.sha256()
    try:
        async with service.stream("GET", url) as answer:
            if answer.status_code != httpx.codes.OK:
                await answer.aread()
                check(answer)
            path.unlink(missing_ok=True)  # noqa: ASYNC240 - never truncate a file that is being read
            with path.open("wb") as file:
                async for piece in answer.aiter_bytes(_PIECE_BYTES):
                    digest.update(piece)
                    file.write(piece)
    except httpx.HTTPError as error:
        raise ServiceUnavailable(f"The job service does not answer: {error!r}.") from error
    if digest.hexdigest() != sha256:
        raise BlobDamaged(f"The blob {sha256[:12]} arrived damaged.")


def _json_of(report: TaskReport) -> bytes:
    """Return a report as JSON. A lone surrogate, in a file's name or an error's text, becomes "?"."""
    try:
        return report.model_dump_json().encode()
    except PydanticSerializationError:
        return json.dumps(report.model_dump(mode="json"), ensure_ascii=False).encode(errors="replace")


async def _in_turn(pieces: Iterable[bytes]) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece


def _pieces(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while piece := file.read(_PIECE_BYTES):
            yield piece


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check(answer: httpx.Response) -> None:
    """Raise the error of an answer that is not a success."""
    status = answer.status_code
    if status < 300:
        return
    try:
        error = ErrorAnswer.model_validate_json(answer.content).error
        text = f"{error.message}. {error.hint}" if error.hint else error.message
    except ValueError:
        text = answer.reason_phrase
    if status == httpx.codes.GONE:
        raise TaskEnded(f"The task is over: {text}")
    if status >= 500 or status in (408, 429):
        raise ServiceUnavailable(f"The job service answered {status}: {text}")
    raise ServiceRefused(f"The job service refused ({status}): {text}")
