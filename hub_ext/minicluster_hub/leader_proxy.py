"""A request passed on to another job service as it comes, and its answer as it comes back."""

from __future__ import annotations

import asyncio
import ssl
from urllib.parse import urlsplit

from tornado.concurrent import Future
from tornado.http1connection import HTTP1Connection, HTTP1ConnectionParameters
from tornado.httputil import (
    HTTPHeaders,
    HTTPMessageDelegate,
    HTTPServerRequest,
    RequestStartLine,
    ResponseStartLine,
)
from tornado.iostream import StreamClosedError
from tornado.routing import Router
from tornado.tcpclient import TCPClient
from tornado.web import Application

from minicluster_hub.control.leader_election import LeaderElection
from minicluster_hub.web.errors import ApiError, answer
from minicluster_hub.web.route import OnFollower

PASSED_ON = "Minicluster-Passed-On"
_CONNECT_S = 2.0
_TAKEN_OVER_S = "2"
"""After so many seconds another service mostly leads."""
_ANY_BODY_BYTES = 2**50
_WHO, _HOW = "X-Real-Ip", "X-Scheme"
"""Whom and by what the proxy saw: a server that believes a proxy reads these first of all."""
_OF_ONE_HOP = ("Connection", "Keep-Alive", "Transfer-Encoding", "Upgrade", "Expect")


class Refusal(HTTPMessageDelegate):
    """Answers with an error once the body has come: before it, the client would see a broken connection."""

    def __init__(self, request: HTTPServerRequest, error: ApiError) -> None:
        self._request = request
        self._error = error

    def finish(self) -> None:
        refuse(self._request, self._error)


class LeaderProxy(HTTPMessageDelegate):
    """One request on its way to `url`. Answers with `error` when that service does not.

    moved: set when another service leads, so that nobody waits for one that is frozen.
    tls: what this service shows that one, where `url` begins with https.
    """

    def __init__(
        self,
        request: HTTPServerRequest,
        url: str,
        moved: asyncio.Event,
        error: ApiError,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._request = request
        self._error = error
        self._there = urlsplit(url)
        self._tls = tls if self._there.scheme == "https" else None
        self._way = asyncio.ensure_future(self._connect())
        self._moved = asyncio.ensure_future(moved.wait())
        self._answer = LeaderAnswer(request)

    async def _connect(self) -> HTTP1Connection:
        host, port = self._there.hostname or "127.0.0.1", self._there.port or 80
        stream = await TCPClient().connect(
            host, port, timeout=_CONNECT_S, max_buffer_size=1 << 23, ssl_options=self._tls
        )
        settings = HTTP1ConnectionParameters(no_keep_alive=True, max_body_size=_ANY_BODY_BYTES)
        way = HTTP1Connection(stream, True, settings)
        line = RequestStartLine(self._request.method or "GET", self._request.uri or "/", "HTTP/1.1")
        headers = _onward(self._request.headers)
        headers[PASSED_ON] = "1"
        headers[_WHO] = str(self._request.remote_ip)
        headers[_HOW] = self._request.protocol
        headers["Connection"] = "close"
        if "Content-Length" not in headers and "Transfer-Encoding" in self._request.headers:
            headers["Transfer-Encoding"] = "chunked"
        await way.write_headers(line, headers)
        return way

    async def data_received(self, chunk: bytes) -> None:
        try:
            await (await asyncio.shield(self._way)).write(chunk)
        except (OSError, StreamClosedError, TimeoutError, asyncio.CancelledError):
            return  # `_finish` meets the same and answers.

    def finish(self) -> None:
        self._work = asyncio.ensure_future(self._finish())

    async def _finish(self) -> None:
        answering = asyncio.ensure_future(self._bring_answer())
        await asyncio.wait([answering, self._moved], return_when=asyncio.FIRST_COMPLETED)
        if not answering.done():
            self._close()
        came = (await asyncio.gather(answering, return_exceptions=True))[0]
        self._moved.cancel()
        if self._answer.begun and came is not True:
            self._request.connection.stream.close()  # type: ignore[union-attr]
        elif came is not True:
            refuse(self._request, self._error)

    async def _bring_answer(self) -> bool:
        way = await self._way
        way.finish()
        return await way.read_response(self._answer) and self._answer.complete

    def on_connection_close(self) -> None:
        self._moved.cancel()
        self._close()

    def _close(self) -> None:
        if self._way.done() and not self._way.cancelled() and self._way.exception() is None:
            self._way.result().close()
        self._way.cancel()


class LeaderAnswer(HTTPMessageDelegate):
    """Writes what comes back to who asked; waits while they are slow."""

    def __init__(self, request: HTTPServerRequest) -> None:
        self._request = request
        self.begun = False
        self.complete = False

    def headers_received(
        self, start_line: RequestStartLine | ResponseStartLine, headers: HTTPHeaders
    ) -> Future[None] | None:
        assert isinstance(start_line, ResponseStartLine)  # noqa: S101
        if start_line.code == 100:
            return None
        self.begun = True
        onward = _onward(headers)
        if "Content-Length" not in onward and start_line.code not in (204, 304):
            onward["Transfer-Encoding"] = "chunked"
        line = ResponseStartLine("HTTP/1.1", start_line.code, start_line.reason)
        return self._connection.write_headers(line, onward)

    def data_received(self, chunk: bytes) -> Future[None] | None:
        return self._connection.write(chunk)

    def finish(self) -> None:
        self.complete = True
        self._connection.finish()

    @property
    def _connection(self) -> HTTP1Connection:
        connection = self._request.connection
        assert isinstance(connection, HTTP1Connection)  # noqa: S101
        return connection


def as_it_came(request: HTTPServerRequest) -> HTTPServerRequest:
    """Return what another job service passed on, as from who asked there."""
    request.remote_ip = request.headers.get(_WHO, request.remote_ip)
    request.protocol = request.headers.get(_HOW, request.protocol)
    return request


def refuse(request: HTTPServerRequest, error: ApiError) -> None:
    """LeaderAnswer with an error, without a handler."""
    body = answer(error).encode()
    headers = HTTPHeaders({"Content-Type": "application/json", "Content-Length": str(len(body))})
    headers["Retry-After"] = _TAKEN_OVER_S
    line = ResponseStartLine("HTTP/1.1", error.status, "Service Unavailable")
    connection = request.connection
    assert isinstance(connection, HTTP1Connection)  # noqa: S101
    connection.write_headers(line, headers, b"" if request.method == "HEAD" else body)
    connection.finish()


def _onward(headers: HTTPHeaders) -> HTTPHeaders:
    onward = HTTPHeaders()
    for name, value in headers.get_all():
        if name not in _OF_ONE_HOP:
            onward.add(name, value)
    return onward


# Who answers a request: this service or, while it stands by, the one that leads.
# A follower knows only whether it is well itself. It passes all else on, body and answer piece by piece: the
# policy, the queue and who may read what are in the leader's memory. Agents are sent to the leader: they know
# all services, and the way is shorter.


class LeaderRouter(Router):
    """Takes each request to who answers it. tls: what one job service shows another.

    of_users: users come in here, too; else what is not for agents is not passed on, but unknown.
    """

    def __init__(
        self,
        inside: Application,
        leader_election: LeaderElection,
        tls: ssl.SSLContext | None = None,
        *,
        of_users: bool = True,
    ) -> None:
        self._inside = inside
        self._leader_election = leader_election
        self._tls = tls
        self._of_users = of_users

    def find_handler(self, request: HTTPServerRequest, **_kwargs: object) -> HTTPMessageDelegate:
        found = self._inside.find_handler(request)
        on_follower = getattr(found.handler_class, "on_follower", OnFollower.PROXY)
        if self._leader_election.leads or on_follower is OnFollower.ANSWER:
            return found
        if on_follower is OnFollower.PROXY and not self._of_users:
            return found
        if on_follower is OnFollower.REFER:
            return Refusal(request, not_leading(self._leader_election.leader_url))
        if not self._leader_election.leader_url or PASSED_ON in request.headers:
            return Refusal(request, nobody_leads())
        return LeaderProxy(
            request, self._leader_election.leader_url, self._leader_election.moved, nobody_leads(), self._tls
        )


def not_leading(leader_url: str) -> ApiError:
    told = f"the one at {leader_url} does" if leader_url else "which one does is not known yet"
    return ApiError(
        503, "not_leading", f"this job service stands by; {told}", "ask the next one of your list"
    )


def nobody_leads() -> ApiError:
    return ApiError(
        503, "no_leader", "no job service leads at this moment; one takes over within seconds", "try again"
    )
