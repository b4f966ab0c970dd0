"""The HTTP servers over the table of routes: of users, of agents, of agents of the former release.

Connections on which nothing comes are ended, and each address of agents has only so many: a container could
take all that the service may have, and agents that connect anew would seem lost.
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
from minicluster_hub.leader_proxy import LeaderRouter, as_it_came
from minicluster_hub.support.tls import ServiceTls
from minicluster_hub.web.base import NotFoundHandler
from minicluster_hub.web.context import ApiLimits, Context
from minicluster_hub.web.route import AGENTS, OnFollower, Route, path_pattern, routes_in

_ANY_BODY_BYTES = 2**50
"""Tornado's own limit, which would cut the connection without a word; each handler has its own."""
_LIMITS = {"max_body_size": _ANY_BODY_BYTES, "max_buffer_size": 8 * 1024 * 1024}

API, PAGES = "minicluster_hub.api", "minicluster_hub.pages"


@dataclass(frozen=True)
class Servers:
    """None listens to anything yet. agents: None where agents come in with the users.

    former: what agents of the former release may ask, by plain HTTP; who listens there decides when.
    """

    users: HTTPServer
    agents: HTTPServer | None
    former: HTTPServer

    def listen(self, users: list[socket], agents: list[socket]) -> None:
        self.users.add_sockets(users)
        if self.agents is not None:
            self.agents.add_sockets(agents)

    def stop(self) -> None:
        for server in self._all:
            server.stop()

    async def close(self) -> None:
        for server in self._all:
            await server.close_all_connections()

    @property
    def _all(self) -> list[HTTPServer]:
        return [server for server in (self.users, self.agents, self.former) if server is not None]


def make_servers(
    context: Context, cookie_secret: bytes, leader_election: LeaderElection, tls: ServiceTls | None
) -> Servers:
    """Return the servers of one service. tls: of the agents' one. Raises OSError."""
    asks = tls.client() if tls else None
    agents = LeaderRouter(_application(context, agent_specs(context)), leader_election, of_users=False)
    specs = url_specs(context, agents=tls is None)
    users = LeaderRouter(_application(context, specs, cookie_secret), leader_election, asks)
    limits, of_agents = context.limits, _Connections(context.limits.connections)
    inside = _Inside(agents, users, of_agents)
    return Servers(
        users=_proxied(users, limits),
        agents=_counting(inside, limits, of_agents, tls.server()) if tls else None,
        former=_counting(agents, limits, of_agents),
    )


def make_server(context: Context, cookie_secret: bytes) -> HTTPServer:
    """Return the one server of a service that is alone; it listens to nothing yet."""
    return _proxied(_application(context, url_specs(context), cookie_secret), context.limits)


class _Inside(Router):
    """The agents' listener: whoever shows the job service's own certificate passes on what users ask."""

    def __init__(self, agents: LeaderRouter, users: LeaderRouter, connections: _Connections) -> None:
        self._agents = agents
        self._users = users
        self._connections = connections

    def find_handler(self, request: HTTPServerRequest, **_kwargs: object) -> HTTPMessageDelegate:
        if request.get_ssl_certificate():
            self._connections.forget(_stream_of(request.connection))  # one for each that a user has
            return self._users.find_handler(as_it_came(request))
        return self._agents.find_handler(request)


class _Connections:
    """Those that are open, by address: where there are too many, the one that was used least makes room.

    So who holds very many, and asks nothing, ends their own, and others behind their address come in.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._asked_nothing: dict[str, dict[IOStream, None]] = {}
        self._asked: dict[str, dict[IOStream, None]] = {}
        """The one whose last request came first is the first."""
        self._addresses: dict[IOStream, str] = {}

    def add(self, stream: IOStream, address: str) -> None:
        new, old = self._asked_nothing.get(address, {}), self._asked.get(address, {})
        if len(new) + len(old) >= self._most:
            first = next(iter(new or old))
            self.forget(first)
            first.close()
        self._addresses[stream] = address
        self._asked_nothing.setdefault(address, {})[stream] = None

    def asks(self, stream: IOStream) -> None:
        """Take it that a whole request came."""
        address = self._addresses.get(stream)
        if address is not None:
            self.forget(stream)
            self._addresses[stream] = address
            self._asked.setdefault(address, {})[stream] = None

    def forget(self, stream: IOStream) -> None:
        """Count one no more. Again is no harm."""
        address = self._addresses.pop(stream, "")
        for counted in (self._asked_nothing, self._asked):
            streams = counted.get(address, {})
            streams.pop(stream, None)
            if not streams:
                counted.pop(address, None)


class _CountingServer(HTTPServer):
    """A server with only so many connections of each address."""

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


class _Watch(HTTPServerConnectionDelegate):
    """Passes requests on, and ends those whose bodies do not come. connections: None where they are few."""

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
        came = None if self._connections is None else partial(self._connections.asks, stream)
        return _Watched(inside, stream, self._stalled_s, came)


class _Watched(HTTPMessageDelegate):
    """One request: the connection is closed when nothing of its body came for so long.

    Not after some time in all: a large snapshot takes long. came: called with the whole request.
    """

    def __init__(
        self,
        inside: HTTPMessageDelegate,
        stream: IOStream,
        stalled_s: float,
        came: Callable[[], None] | None,
    ) -> None:
        self._inside = inside
        self._stream = stream
        self._stalled_s = stalled_s
        self._came = came
        self._end: asyncio.TimerHandle | None = None

    async def headers_received(
        self, start_line: RequestStartLine | ResponseStartLine, headers: HTTPHeaders
    ) -> None:
        taken = self._inside.headers_received(start_line, headers)
        if taken is not None:
            await taken
        self._wait()

    async def data_received(self, chunk: bytes) -> None:
        self._rest()
        taken = self._inside.data_received(chunk)
        if taken is not None:
            await taken
        self._wait()

    def finish(self) -> None:
        self._rest()
        if self._came is not None:
            self._came()
        self._inside.finish()

    def on_connection_close(self) -> None:
        self._rest()
        self._inside.on_connection_close()

    def _wait(self) -> None:
        self._end = asyncio.get_running_loop().call_later(self._stalled_s, self._stream.close)

    def _rest(self) -> None:
        if self._end is not None:
            self._end.cancel()
            self._end = None


def _proxied(users: Application | LeaderRouter, limits: ApiLimits) -> HTTPServer:
    """Return a server that believes what the hub's proxy says of who asks: all come from its address."""
    watch = _Watch(users, limits.body_stalled_s)
    return HTTPServer(watch, xheaders=True, idle_connection_timeout=limits.idle_s, **_LIMITS)


def _counting(
    agents: Router, limits: ApiLimits, connections: _Connections, tls: ssl.SSLContext | None = None
) -> HTTPServer:
    watch, idle_s = _Watch(agents, limits.body_stalled_s, connections), limits.idle_s
    return _CountingServer(
        watch, connections=connections, ssl_options=tls, idle_connection_timeout=idle_s, **_LIMITS
    )


def _stream_of(connection: HTTPConnection | None) -> IOStream:
    assert isinstance(connection, HTTP1Connection) and connection.stream  # noqa: S101
    return connection.stream


def _application(context: Context, specs: list[URLSpec], cookie_secret: bytes = b"") -> Application:
    return Application(
        specs,
        cookie_secret=cookie_secret or None,
        xsrf_cookie_kwargs={"httponly": True},  # our pages have the token in themselves
        log_function=_access_log(context.log),
    )


def _access_log(log: logging.Logger) -> Callable[[RequestHandler], None]:
    """Log refused and failed requests, without their query: it may hold a token."""

    def access(handler: RequestHandler) -> None:
        status = handler.get_status()
        level = logging.DEBUG if status < 400 else logging.INFO if status < 500 else logging.ERROR
        request = handler.request
        log.log(level, "%s %s %s from %s", status, request.method, request.path, request.remote_ip)

    return access


# What tornado serves: the routes that handlers declare, and 404 for the rest.


def url_specs(context: Context, *, agents: bool = True) -> list[URLSpec]:
    """Return what users are served. agents: also what agents of tasks and of nodes are."""
    routes = [route for route in routes_in(API) if agents or route.who not in AGENTS]
    prefix = context.prefix
    return [
        *_specs((*routes, *routes_in(PAGES)), context),
        URLSpec(prefix.rstrip("/"), RedirectHandler, {"url": prefix, "permanent": False}),
        URLSpec(r".*", NotFoundHandler, {"context": context, "routes": {}}),
    ]


def agent_specs(context: Context) -> list[URLSpec]:
    """Return what agents are served, and what every job service answers itself."""
    routes = [
        route for route in routes_in(API) if route.who in AGENTS or route.on_follower is OnFollower.ANSWER
    ]
    return [*_specs(routes, context), URLSpec(r".*", NotFoundHandler, {"context": context, "routes": {}})]


def _specs(routes: Iterable[Route], context: Context) -> list[URLSpec]:
    """Return one rule for each path; its handler gets the routes by their methods."""
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
