"""The HTTP servers: for users, for agents, and for agents of the former release.

Idle connections are closed, and each address has a limited number of connections to the agents' port.
Otherwise one container could use up all connections of the service, and the agents of others could not
connect and would count as lost.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from socket import socket
from typing import Any

from tornado.http1connection import HTTP1Connection, HTTP1ServerConnection
from tornado.httpserver import HTTPServer
from tornado.httputil import (
    HTTPConnection,
    HTTPHeaders,
    HTTPMessageDelegate,
    HTTPServerConnectionDelegate,
    HTTPServerRequest,
    RequestStartLine,
    ResponseStartLine,
)
from tornado.iostream import IOStream
from tornado.routing import Router, URLSpec
from tornado.web import Application, RedirectHandler, RequestHandler

from minicluster_hub.control.leader_election import LeaderElection
from minicluster_hub.leader_proxy import LeaderRouter, with_client
from minicluster_hub.listeners import UsersPort
from minicluster_hub.support.tls import ServiceTls
from minicluster_hub.web.base import NotFoundHandler
from minicluster_hub.web.context import ApiLimits, Context
from minicluster_hub.web.route import AGENTS, OnFollower, Route, path_pattern, routes_in

_ANY_BODY_BYTES = 2**50
"""No limit: tornado's would close the connection without an answer. Each handler has its own limit."""
_LIMITS = {"max_body_size": _ANY_BODY_BYTES, "max_buffer_size": 8 * 1024 * 1024, "chunk_size": 256 * 1024}
"""chunk_size: what is read at once; tornado's 64 KB cost an upload more than its bytes do."""

API, PAGES = "minicluster_hub.api", "minicluster_hub.pages"


@dataclass(frozen=True)
class Servers:
    """The servers of one service, not listening yet. agents: None where agents use the users' port.

    former: for agents of the former release, by plain HTTP; FormerAgents opens its port if it is needed.
    """

    users: UsersPort
    agents: HTTPServer | None
    former: HTTPServer

    def listen(self, users: list[socket], agents: list[socket]) -> None:
        self.users.listen(users)
        if self.agents is not None:
            self.agents.add_sockets(agents)

    def stop(self) -> None:
        self.users.stop()
        for server in self._of_agents:
            server.stop()

    async def close(self) -> None:
        await self.users.close()
        for server in self._of_agents:
            await server.close_all_connections()

    @property
    def _of_agents(self) -> list[HTTPServer]:
        return [server for server in (self.agents, self.former) if server is not None]


def make_servers(
    context: Context, cookie_secret: bytes, leader_election: LeaderElection, tls: ServiceTls | None
) -> Servers:
    """Return the servers of one service. tls: for the agents' server. Raises OSError."""
    agents = LeaderRouter(_application(context, agent_specs(context)), leader_election, of_users=False)
    specs = url_specs(context, agents=tls is None)
    client_tls = tls.client() if tls else None
    users = LeaderRouter(_application(context, specs, cookie_secret), leader_election, client_tls)
    limits, connections = context.limits, _Connections(context.limits.connections)
    router = _AgentsPortRouter(agents, users, connections)
    return Servers(
        users=UsersPort(lambda: _proxied(users, limits)),
        agents=_counting(router, limits, connections, tls.server()) if tls else None,
        former=_counting(agents, limits, connections),
    )


def make_server(context: Context, cookie_secret: bytes) -> HTTPServer:
    """Return the server of a service without followers and without an agents' port; not listening yet."""
    return _proxied(_application(context, url_specs(context), cookie_secret), context.limits)


class _AgentsPortRouter(Router):
    """Routes requests on the agents' port. A client with the job service's certificate is another job
    service: it passes on requests of users."""

    def __init__(self, agents: LeaderRouter, users: LeaderRouter, connections: _Connections) -> None:
        self._agents = agents
        self._users = users
        self._connections = connections

    def find_handler(self, request: HTTPServerRequest, **_kwargs: object) -> HTTPMessageDelegate:
        # A connection that is closed by now has no socket to ask.
        if _stream_of(request.connection).socket is not None and request.get_ssl_certificate():
            # Not limited: a job service opens a connection for each request that it passes on.
            self._connections.forget(_stream_of(request.connection))
            return self._users.find_handler(with_client(request))
        return self._agents.find_handler(request)


class _Connections:
    """The open connections of each address. A new one over the limit closes the one that is longest unused.

    Connections without a request so far are closed first. So a client that opens many idle connections
    closes only its own, and other clients at the same address still connect.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._unused: dict[str, dict[IOStream, None]] = {}
        """Without a request so far, the oldest first."""
        self._used: dict[str, dict[IOStream, None]] = {}
        """In the order of their last requests, the oldest first."""
        self._addresses: dict[IOStream, str] = {}

    def add(self, stream: IOStream, address: str) -> None:
        unused, used = self._unused.get(address, {}), self._used.get(address, {})
        if len(unused) + len(used) >= self._most:
            first = next(iter(unused or used))
            self.forget(first)
            first.close()
        self._addresses[stream] = address
        self._unused.setdefault(address, {})[stream] = None

    def mark_used(self, stream: IOStream) -> None:
        """Note that a whole request came."""
        address = self._addresses.get(stream)
        if address is not None:
            self.forget(stream)
            self._addresses[stream] = address
            self._used.setdefault(address, {})[stream] = None

    def forget(self, stream: IOStream) -> None:
        """Stop counting a connection; may be repeated."""
        address = self._addresses.pop(stream, "")
        for counted in (self._unused, self._used):
            streams = counted.get(address, {})
            streams.pop(stream, None)
            if not streams:
                counted.pop(address, None)


class _CountingServer(HTTPServer):
    """A server with a limited number of connections from each address."""

    def initialize(self, *args: Any, **options: Any) -> None:
        self._open: _Connections = options.pop("connections")
        super().initialize(*args, **options)

    def handle_stream(self, stream: IOStream, address: tuple[Any, ...]) -> None:
        self._open.add(stream, address[0])
        super().handle_stream(stream, address)

    def on_close(self, server_conn: object) -> None:
        assert isinstance(server_conn, HTTP1ServerConnection)  # noqa: S101
        self._open.forget(server_conn.stream)
        super().on_close(server_conn)


class _StallGuard(HTTPServerConnectionDelegate):
    """Passes requests on, and closes connections whose bodies stall. connections: None: not counted."""

    def __init__(
        self,
        inside: HTTPServerConnectionDelegate,
        stalled_s: float,
        connections: _Connections | None = None,
    ) -> None:
        self._inside = inside
        self._stalled_s = stalled_s
        self._connections = connections

    def start_request(self, server_conn: object, request_conn: HTTPConnection) -> HTTPMessageDelegate:
        inside, stream = self._inside.start_request(server_conn, request_conn), _stream_of(request_conn)
        on_complete = None if self._connections is None else partial(self._connections.mark_used, stream)
        return _GuardedRequest(inside, stream, self._stalled_s, on_complete)


class _GuardedRequest(HTTPMessageDelegate):
    """One request. Its connection is closed when no part of its body comes for `stalled_s`.

    The whole body may take longer: a snapshot is large. on_complete: called when the whole request has come.
    """

    def __init__(
        self,
        inside: HTTPMessageDelegate,
        stream: IOStream,
        stalled_s: float,
        on_complete: Callable[[], None] | None,
    ) -> None:
        self._inside = inside
        self._stream = stream
        self._stalled_s = stalled_s
        self._on_complete = on_complete
        self._timer: asyncio.TimerHandle | None = None

    async def headers_received(
        self, start_line: RequestStartLine | ResponseStartLine, headers: HTTPHeaders
    ) -> None:
        done = self._inside.headers_received(start_line, headers)
        if done is not None:
            await done
        self._start_timer()

    async def data_received(self, chunk: bytes) -> None:
        self._stop_timer()
        done = self._inside.data_received(chunk)
        if done is not None:
            await done
        self._start_timer()

    def finish(self) -> None:
        self._stop_timer()
        if self._on_complete is not None:
            self._on_complete()
        self._inside.finish()

    def on_connection_close(self) -> None:
        self._stop_timer()
        self._inside.on_connection_close()

    def _start_timer(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._stalled_s, self._stream.close)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _proxied(users: Application | LeaderRouter, limits: ApiLimits) -> HTTPServer:
    """Return a server that takes clients' addresses from the headers of the hub's proxy."""
    guard = _StallGuard(users, limits.body_stalled_s)
    return HTTPServer(guard, xheaders=True, idle_connection_timeout=limits.idle_s, **_LIMITS)


def _counting(
    agents: Router, limits: ApiLimits, connections: _Connections, tls: ssl.SSLContext | None = None
) -> HTTPServer:
    guard, idle_s = _StallGuard(agents, limits.body_stalled_s, connections), limits.idle_s
    return _CountingServer(
        guard, connections=connections, ssl_options=tls, idle_connection_timeout=idle_s, **_LIMITS
    )


def _stream_of(connection: HTTPConnection | None) -> IOStream:
    assert isinstance(connection, HTTP1Connection) and connection.stream  # noqa: S101
    return connection.stream


def _application(context: Context, specs: list[URLSpec], cookie_secret: bytes = b"") -> Application:
    return Application(
        specs,
        cookie_secret=cookie_secret or None,
        xsrf_cookie_kwargs={"httponly": True},  # our pages contain the token
        log_function=_access_log(context.log),
    )


def _access_log(log: logging.Logger) -> Callable[[RequestHandler], None]:
    """Log refused and failed requests, without their query, which may contain a token."""

    def access(handler: RequestHandler) -> None:
        status = handler.get_status()
        level = logging.DEBUG if status < 400 else logging.INFO if status < 500 else logging.ERROR
        request = handler.request
        log.log(level, "%s %s %s from %s", status, request.method, request.path, request.remote_ip)

    return access


# The URL specs of tornado's applications: the routes that handlers declare, and 404 for the rest.


def url_specs(context: Context, *, agents: bool = True) -> list[URLSpec]:
    """Return the specs for users. agents: also those for agents of tasks and of nodes."""
    routes = [route for route in routes_in(API) if agents or route.who not in AGENTS]
    prefix = context.prefix
    return [
        *_specs((*routes, *routes_in(PAGES)), context),
        URLSpec(prefix.rstrip("/"), RedirectHandler, {"url": prefix, "permanent": False}),
        URLSpec(r".*", NotFoundHandler, {"context": context, "routes": {}}),
    ]


def agent_specs(context: Context) -> list[URLSpec]:
    """Return the specs for agents, and those that every job service answers itself."""
    routes = [
        route for route in routes_in(API) if route.who in AGENTS or route.on_follower is OnFollower.ANSWER
    ]
    return [*_specs(routes, context), URLSpec(r".*", NotFoundHandler, {"context": context, "routes": {}})]


def _specs(routes: Iterable[Route], context: Context) -> list[URLSpec]:
    """Return one spec for each path; its handler gets the path's routes by method."""
    by_path: dict[str, dict[str, Route]] = {}
    for route in routes:
        for path in route.paths:
            by_path.setdefault(path_pattern(route, path), {})[route.method] = route
    return [
        URLSpec(
            f"{context.prefix}{pattern}",
            next(iter(methods.values())).handler,
            {"context": context, "routes": methods},
        )
        for pattern, methods in by_path.items()
    ]
