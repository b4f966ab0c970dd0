"""Streams a request to the leading job service, and the leader's answer back."""

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
_TAKEOVER_S = "2"
"""Usually another service leads after this many seconds."""
_ANY_BODY_BYTES = 2**50
_CLIENT_ADDRESS, _CLIENT_SCHEME = "X-Real-Ip", "X-Scheme"
"""The client as the proxy saw it. tornado's `xheaders` reads these before X-Forwarded-For."""
_OF_ONE_HOP = ("Connection", "Keep-Alive", "Transfer-Encoding", "Upgrade", "Expect")


class Refusal(HTTPMessageDelegate):
    """Answers with an error after the whole body has come. Earlier, the client would see a reset."""

    def __init__(self, request: HTTPServerRequest, error: ApiError) -> None:
        self._request = request
        self._error = error

    def finish(self) -> None:
        refuse(self._request, self._error)


class LeaderProxy(HTTPMessageDelegate):
    """Passes one request to the leader at `url`. Answers with `error` if the leader does not answer.

    moved: set when another service takes the lead, so that no request waits for a frozen leader.
    tls: this service's certificate, if `url` begins with https.
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
        self._leader = urlsplit(url)
        self._tls = tls if self._leader.scheme == "https" else None
        self._connection = asyncio.ensure_future(self._connect())
        self._moved = asyncio.ensure_future(moved.wait())
        self._answer = LeaderAnswer(request)

    async def _connect(self) -> HTTP1Connection:
        host, port = self._leader.hostname or "127.0.0.1", self._leader.port or 80
        stream = await TCPClient().connect(
            host, port, timeout=_CONNECT_S, max_buffer_size=1 << 23, ssl_options=self._tls
        )
        settings = HTTP1ConnectionParameters(no_keep_alive=True, max_body_size=_ANY_BODY_BYTES)
        connection = HTTP1Connection(stream, True, settings)
        line = RequestStartLine(self._request.method or "GET", self._request.uri or "/", "HTTP/1.1")
        headers = _end_to_end(self._request.headers)
        headers[PASSED_ON] = "1"
        headers[_CLIENT_ADDRESS] = str(self._request.remote_ip)
        headers[_CLIENT_SCHEME] = self._request.protocol
        headers["Connection"] = "close"
        if "Content-Length" not in headers and "Transfer-Encoding" in self._request.headers:
            headers["Transfer-Encoding"] = "chunked"
        await connection.write_headers(line, headers)
        return connection

    async def data_received(self, chunk: bytes) -> None:
        try:
            await (await asyncio.shield(self._connection)).write(chunk)
        except (OSError, StreamClosedError, TimeoutError, asyncio.CancelledError):
            return  # `_finish` gets the same error and answers.

    def finish(self) -> None:
        self._work = asyncio.ensure_future(self._finish())

    async def _finish(self) -> None:
        answering = asyncio.ensure_future(self._pass_answer())
        await asyncio.wait([answering, self._moved], return_when=asyncio.FIRST_COMPLETED)
        if not answering.done():
            self._close()
        complete = (await asyncio.gather(answering, return_exceptions=True))[0]
        self._moved.cancel()
        if self._answer.begun and complete is not True:
            self._request.connection.stream.close()  # type: ignore[union-attr]
        elif complete is not True:
            refuse(self._request, self._error)

    async def _pass_answer(self) -> bool:
        connection = await self._connection
        connection.finish()
        return await connection.read_response(self._answer) and self._answer.complete

    def on_connection_close(self) -> None:
        self._moved.cancel()
        self._close()

    def _close(self) -> None:
        connection = self._connection
        if connection.done() and not connection.cancelled() and connection.exception() is None:
            connection.result().close()
        connection.cancel()


class LeaderAnswer(HTTPMessageDelegate):
    """Writes the leader's answer to the client, as fast as the client reads."""

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
        passed = _end_to_end(headers)
        if "Content-Length" not in passed and start_line.code not in (204, 304):
            passed["Transfer-Encoding"] = "chunked"
        line = ResponseStartLine("HTTP/1.1", start_line.code, start_line.reason)
        return self._connection.write_headers(line, passed)

    def data_received(self, chunk: bytes) -> Future[None] | None:
        return self._connection.write(chunk)

    def finish(self) -> None:
        self.complete = True
        self._connection.finish()

    @property
    def _connection(self) -> HTTP1Connection:
        return _connection_of(self._request)


def _connection_of(request: HTTPServerRequest) -> HTTP1Connection:
    assert isinstance(request.connection, HTTP1Connection)  # noqa: S101
    return request.connection


def with_client(request: HTTPServerRequest) -> HTTPServerRequest:
    """Return a request that another job service passed on, with the address of the client."""
    request.remote_ip = request.headers.get(_CLIENT_ADDRESS, request.remote_ip)
    request.protocol = request.headers.get(_CLIENT_SCHEME, request.protocol)
    return request


def refuse(request: HTTPServerRequest, error: ApiError) -> None:
    """Answer with an error, without a handler."""
    body = answer(error).encode()
    headers = HTTPHeaders({"Content-Type": "application/json", "Content-Length": str(len(body))})
    headers["Retry-After"] = _TAKEOVER_S
    line = ResponseStartLine("HTTP/1.1", error.status, "Service Unavailable")
    connection = _connection_of(request)
    connection.write_headers(line, headers, b"" if request.method == "HEAD" else body)
    connection.finish()


def _end_to_end(headers: HTTPHeaders) -> HTTPHeaders:
    """Return the headers that a proxy passes on."""
    passed = HTTPHeaders()
    for name, value in headers.get_all():
        if name not in _OF_ONE_HOP:
            passed.add(name, value)
    return passed


# A follower answers only health checks itself. The policy, the queue and the permissions are in the leader's
# memory, so it streams users' requests to the leader. It refers agents to the leader: they know all services,
# and a direct connection is shorter.


class LeaderRouter(Router):
    """Routes each request to this service or to the leader. tls: a job service's certificate for another.

    of_users: False on a port for agents alone, where users' requests are not passed on but unknown.
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
    leader = f"the one at {leader_url} does" if leader_url else "which one does is not known yet"
    message = f"this job service does not lead; {leader}"
    return ApiError(503, "not_leading", message, "try the next job service of your list")


def nobody_leads() -> ApiError:
    return ApiError(
        503, "no_leader", "no job service leads at this moment; one takes over within seconds", "try again"
    )
