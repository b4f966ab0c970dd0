"""The HTTP servers over the table of routes: of users, of agents, of agents of the former release."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from socket import socket

from tornado.httpserver import HTTPServer
from tornado.httputil import HTTPMessageDelegate, HTTPServerRequest
from tornado.routing import Router, URLSpec
from tornado.web import Application, RequestHandler

from minicluster_hub.duty import Duty
from minicluster_hub.handlers.context import Context
from minicluster_hub.handlers.door import Door
from minicluster_hub.handlers.pass_on import as_it_came
from minicluster_hub.handlers.routes import agent_specs, url_specs
from minicluster_hub.tls import ServiceTls

_ANY_BODY_BYTES = 2**50
"""Tornado's own limit, which would cut the connection without a word; each handler has its own."""
_LIMITS = {"max_body_size": _ANY_BODY_BYTES, "max_buffer_size": 8 * 1024 * 1024}


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


def make_servers(context: Context, cookie_secret: bytes, duty: Duty, tls: ServiceTls | None) -> Servers:
    """Return the servers of one service. tls: of the agents' one. Raises OSError."""
    asks = tls.client() if tls else None
    agents = Door(_application(context, agent_specs(context)), duty, context.prefix, of_users=False)
    specs = url_specs(context, agents=tls is None)
    users = Door(_application(context, specs, cookie_secret), duty, context.prefix, asks)
    return Servers(
        users=_proxied(users),
        agents=HTTPServer(_Inside(agents, users), ssl_options=tls.server(), **_LIMITS) if tls else None,
        former=HTTPServer(agents, **_LIMITS),
    )


def make_server(context: Context, cookie_secret: bytes) -> HTTPServer:
    """Return the one server of a service that is alone; it listens to nothing yet."""
    return _proxied(_application(context, url_specs(context), cookie_secret))


class _Inside(Router):
    """The agents' listener: whoever shows the job service's own certificate passes on what users ask."""

    def __init__(self, agents: Door, users: Door) -> None:
        self._agents = agents
        self._users = users

    def find_handler(self, request: HTTPServerRequest, **_kwargs: object) -> HTTPMessageDelegate:
        if request.get_ssl_certificate():
            return self._users.find_handler(as_it_came(request))
        return self._agents.find_handler(request)


def _proxied(users: Application | Door) -> HTTPServer:
    """Return a server that believes what the hub's proxy says of who asks."""
    return HTTPServer(users, xheaders=True, **_LIMITS)


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
