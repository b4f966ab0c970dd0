"""The heads of HTTP messages that the relay reads and writes; bodies it passes on unseen.

A connection carries one request: both sides are told to close after it. So no body has to be
understood, and nothing can be smuggled behind the first request.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from http import HTTPStatus

import h11

READING = frozenset({b"GET", b"HEAD"})
_HEAD_LIMIT_BYTES = 64 * 1024
_HOP_BY_HOP = frozenset(
    {b"connection", b"keep-alive", b"proxy-connection", b"proxy-authorization", b"upgrade", b"host"}
)
_OF_THE_BODY = frozenset({b"content-length", b"transfer-encoding", b"expect", b"trailer"})


class RequestBroken(Exception):
    """What a client sent is no HTTP request."""


@dataclass(frozen=True)
class Request:
    """A request's head, and the bytes of its body that came with it."""

    method: bytes
    target: bytes
    headers: tuple[tuple[bytes, bytes], ...]
    body_start: bytes


class HeadReader:
    """Collects bytes until a request's head is whole."""

    def __init__(self) -> None:
        self._parser = h11.Connection(h11.SERVER, max_incomplete_event_size=_HEAD_LIMIT_BYTES)

    def feed(self, data: bytes) -> Request | None:
        """Take what came in (b"": the client closed); return the request once its head is whole."""
        try:
            self._parser.receive_data(data)
            event = self._parser.next_event()
        except h11.RemoteProtocolError as error:
            raise RequestBroken(str(error)) from error
        if not isinstance(event, h11.Request):
            return None
        return Request(event.method, event.target, tuple(event.headers), self._parser.trailing_data[0])


def reading_head(request: Request, host: str, authorization: bytes) -> bytes:
    """Write the head of a request without body, with credentials of ours instead of the client's."""
    left_out = _HOP_BY_HOP | _OF_THE_BODY | {b"authorization"}
    return _head(request, host, left_out, [(b"authorization", authorization)])


def passing_head(request: Request, host: str) -> bytes:
    """Write the head of a request that goes through as it is."""
    return _head(request, host, _HOP_BY_HOP, [])


def answer(status: HTTPStatus, code: str, message: str, *, head_only: bool = False) -> bytes:
    """Write an answer of our own; Docker shows the status line of a 5xx, and of a 4xx the body's message."""
    body = json.dumps({"errors": [{"code": code, "message": message, "detail": None}]}).encode()
    lines = [
        f"HTTP/1.1 {status.value} {status.phrase}: {message}",
        "Content-Type: application/json",
        "Docker-Distribution-Api-Version: registry/2.0",
        *(["Allow: GET, HEAD"] if status == HTTPStatus.METHOD_NOT_ALLOWED else []),
        f"Content-Length: {len(body)}",
        "Connection: close",
    ]
    return "\r\n".join(lines).encode("ascii", "replace") + b"\r\n\r\n" + (b"" if head_only else body)


def _head(
    request: Request, host: str, left_out: frozenset[bytes] | set[bytes], more: list[tuple[bytes, bytes]]
) -> bytes:
    kept = [(name, value) for name, value in request.headers if name not in left_out]
    fields = [(b"host", host.encode()), *kept, *more, (b"connection", b"close")]
    lines = [request.method + b" " + request.target + b" HTTP/1.1", *(b": ".join(field) for field in fields)]
    return b"\r\n".join(lines) + b"\r\n\r\n"
