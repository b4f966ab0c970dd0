"""The agent's calls to the job service. Each can be repeated; none is, in here."""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections.abc import AsyncIterator
from pathlib import Path

import httpx

from minicluster.errors import MiniclusterError
from minicluster.wire import (
    VERSION_HEADER,
    WIRE_VERSION,
    BlobInfo,
    ErrorAnswer,
    ReportAnswer,
    TaskOrders,
    TaskReport,
)

_HOLD_S = 25.0
_TIMEOUT = httpx.Timeout(10.0)
_LONG_TIMEOUT = httpx.Timeout(10.0, read=_HOLD_S + 10.0)
_PIECE_BYTES = 1 << 20


class ServiceAway(MiniclusterError):
    """The service did not answer, or is not well: try again later."""


class ServiceRefused(MiniclusterError):
    """The service answered no; the same question will get the same answer."""


class TaskOver(MiniclusterError):
    """The service says that this task has ended: nothing of it may stay."""


class Backoff:
    """Waits that grow from 0.1 s to 2 s, with some chance, so that agents do not come all at once."""

    def __init__(self) -> None:
        self._next_s = 0.1

    def next_s(self) -> float:
        wait_s = self._next_s * random.uniform(0.7, 1.0)
        self._next_s = min(2.0, self._next_s * 2)
        return wait_s

    def reset(self) -> None:
        self._next_s = 0.1


class Link:
    """One connection pool to the service, with the task's token. All methods raise the three above."""

    def __init__(self, service_url: str, token: str) -> None:
        headers = {"Authorization": f"task {token}", VERSION_HEADER: str(WIRE_VERSION)}
        self._http = httpx.AsyncClient(
            base_url=service_url,
            headers=headers,
            timeout=_TIMEOUT,
            # Without TLS the certificates need not be loaded, which costs time and 5 MB.
            verify=service_url.startswith("https:"),
            trust_env=False,
        )

    async def report(self, report: TaskReport) -> ReportAnswer:
        body = report.model_dump_json()
        answer = await self._ask("POST", "api/tasks/report", content=body, headers=_JSON)
        return ReportAnswer.model_validate_json(answer.content)

    async def orders(self, have: str) -> TaskOrders:
        """Return the orders when they differ from `have`, or after some time the same ones."""
        answer = await self._ask("GET", "api/tasks/orders", params={"have": have}, timeout=_LONG_TIMEOUT)
        return TaskOrders.model_validate_json(answer.content)

    async def fetch(self, sha256: str, path: Path) -> None:
        """Write a blob to a file, its hash checked."""
        digest = hashlib.sha256()
        try:
            async with self._http.stream("GET", f"api/tasks/blobs/{sha256}") as answer:
                if answer.status_code != httpx.codes.OK:
                    await answer.aread()
                    _check(answer)
                path.unlink(missing_ok=True)  # noqa: ASYNC240 - a local disk
                async for piece in answer.aiter_bytes(_PIECE_BYTES):
                    digest.update(piece)
                    _append(path, piece)
        except httpx.HTTPError as error:
            raise ServiceAway(f"The job service does not answer: {error!r}.") from error
        if digest.hexdigest() != sha256:
            raise ServiceAway(f"The blob {sha256[:12]} arrived damaged.")

    async def upload(self, path: Path) -> BlobInfo:
        """Send a file as a blob."""
        sha256 = await asyncio.to_thread(_digest, path)
        size = path.stat().st_size  # noqa: ASYNC240 - a local disk
        headers = {"Content-Length": str(size), "Content-Type": "application/octet-stream"}
        url = f"api/tasks/blobs/{sha256}"
        answer = await self._ask(
            "PUT", url, content=_pieces(path, size), headers=headers, timeout=_LONG_TIMEOUT
        )
        return BlobInfo.model_validate_json(answer.content)

    async def close(self) -> None:
        await self._http.aclose()

    async def _ask(self, method: str, url: str, **request: object) -> httpx.Response:
        try:
            answer = await self._http.request(method, url, **request)  # type: ignore[arg-type]
        except httpx.HTTPError as error:
            raise ServiceAway(f"The job service does not answer: {error!r}.") from error
        _check(answer)
        return answer


_JSON = {"Content-Type": "application/json"}


async def _pieces(path: Path, size: int) -> AsyncIterator[bytes]:
    for offset in range(0, size, _PIECE_BYTES):
        yield _piece(path, offset)


def _piece(path: Path, offset: int) -> bytes:
    with path.open("rb") as file:
        file.seek(offset)
        return file.read(_PIECE_BYTES)


def _append(path: Path, piece: bytes) -> None:
    with path.open("ab") as file:
        file.write(piece)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _check(answer: httpx.Response) -> None:
    status = answer.status_code
    if status < 300:
        return
    try:
        said = ErrorAnswer.model_validate_json(answer.content).error.message
    except ValueError:
        said = answer.reason_phrase
    if status == httpx.codes.GONE:
        raise TaskOver(f"The task is over: {said}")
    if status >= 500 or status in (408, 429):
        raise ServiceAway(f"The job service answered {status}: {said}")
    raise ServiceRefused(f"The job service refused ({status}): {said}")
