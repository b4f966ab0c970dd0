"""The HTTP server over the table of routes."""

from __future__ import annotations

import logging
from collections.abc import Callable

from tornado.httpserver import HTTPServer
from tornado.web import Application, RequestHandler

from minicluster_hub.duty import Duty
from minicluster_hub.handlers.context import Context
from minicluster_hub.handlers.door import Door
from minicluster_hub.handlers.routes import url_specs

_ANY_BODY_BYTES = 2**50
"""Tornado's own limit, which would cut the connection without a word; each handler has its own."""


def make_server(context: Context, cookie_secret: bytes, duty: Duty | None = None) -> HTTPServer:
    """Return a server that listens to nothing yet. duty: None, it is the only one."""
    application = Application(
        list(url_specs(context)),
        cookie_secret=cookie_secret,
        log_function=_access_log(context.log),
    )
    door = application if duty is None else Door(application, duty, context.prefix)
    return HTTPServer(door, max_body_size=_ANY_BODY_BYTES, max_buffer_size=8 * 1024 * 1024, xheaders=True)


def _access_log(log: logging.Logger) -> Callable[[RequestHandler], None]:
    """Log refused and failed requests, without their query: it may hold a token."""

    def access(handler: RequestHandler) -> None:
        status = handler.get_status()
        level = logging.DEBUG if status < 400 else logging.INFO if status < 500 else logging.ERROR
        request = handler.request
        log.log(level, "%s %s %s from %s", status, request.method, request.path, request.remote_ip)

    return access
