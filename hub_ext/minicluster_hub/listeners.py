"""The addresses that the job service listens on: one for users, one for agents and other job services."""

from __future__ import annotations

import os
import resource
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from tornado.httpserver import HTTPServer
from tornado.netutil import bind_sockets, bind_unix_socket
from traitlets import List, Unicode, default
from traitlets.config import Configurable

from minicluster_hub.support.tls import ServiceTls

_OPEN_FILES = 1 << 16
"""Enough for thirty addresses with as many connections as each may have."""


class ServiceBroken(Exception):
    """The service cannot start; the message is one sentence for the admin."""


@dataclass(frozen=True)
class Sockets:
    """Bound sockets. agents: empty where agents use the users' port."""

    users: list[socket.socket]
    agents: list[socket.socket]


class ListenerOptions(Configurable):
    """Set them as options of MiniclusterHub."""

    bind_url = Unicode(help="Where to listen for users; JUPYTERHUB_SERVICE_URL by default.").tag(config=True)
    agents_bind_url = Unicode(
        help="Where to listen with TLS, only for agents and other job services: https://ADDRESS:PORT. "
        "Empty: agents use the users' port; for one machine."
    ).tag(config=True)
    former_bind_url = Unicode(
        help="Where to listen for agents of a release before TLS, as long as one of their tasks runs."
    ).tag(config=True)
    tls_cert_file = Unicode(help="The certificate of agents_bind_url.").tag(config=True)
    tls_key_file = Unicode(help="Its key.").tag(config=True)
    tls_ca_file = Unicode(help="The authority that signed this certificate and no other.").tag(config=True)
    task_url = Unicode(
        help="The service's URL as tasks reach it, with the prefix; by default where it listens."
    ).tag(config=True)
    task_urls = List(
        Unicode(),
        help="The URLs of all job services as tasks reach them, if several share one PostgreSQL and one data "
        "folder: one leads, the others stand by.",
    ).tag(config=True)

    @default("bind_url")
    def _default_bind_url(self) -> str:
        return os.environ.get("JUPYTERHUB_SERVICE_URL") or "http://127.0.0.1:8082"

    def bind(self) -> Sockets:
        """Open the ports. Raises ServiceBroken."""
        allow_open_files()
        return Sockets(bind(self.bind_url), bind(self.agents_bind_url) if self.agents_bind_url else [])

    def url_for_tasks(self, sockets: Sockets) -> str:
        """Return the URL that agents call directly, not through the proxy."""
        if self.task_url:
            return self.task_url
        url = urlsplit(self.agents_bind_url or self.bind_url)
        host = url.hostname or "127.0.0.1"
        reached = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104
        shown = f"[{reached}]" if ":" in reached else reached
        prefix = os.environ.get("JUPYTERHUB_SERVICE_PREFIX") or "/"
        port = (sockets.agents or sockets.users)[0].getsockname()[1]
        return f"{'https' if self.agents_bind_url else 'http'}://{shown}:{port}{prefix}"

    @property
    def tls(self) -> ServiceTls | None:
        """The TLS files of the agents' port; None where agents use the users' port."""
        if not self.agents_bind_url:
            return None
        return ServiceTls(self.tls_cert_file, self.tls_key_file, self.tls_ca_file)


def allow_open_files() -> None:
    """Allow as many connections as the machine permits; most shells permit only 1024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _OPEN_FILES if hard == resource.RLIM_INFINITY else min(_OPEN_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def bind(bind_url: str) -> list[socket.socket]:
    """Open a port. Raises ServiceBroken."""
    url = urlsplit(bind_url)
    host, port = url.hostname or "127.0.0.1", 80 if url.port is None else url.port
    try:
        return bind_sockets(port, host)
    except OSError as error:
        raise ServiceBroken(
            f"the job service cannot listen at {host}:{port}: {error.strerror}; end what uses the port, "
            "or choose another one with JUPYTERHUB_SERVICE_URL"
        ) from error


class UsersPort:
    """The users' port. The job service listens there itself, or behind a front that has the port's sockets.

    make: makes a server of the users' requests. A server that was stopped answers the requests that it has.
    """

    def __init__(self, make: Callable[[], HTTPServer]) -> None:
        self._make = make
        self._servers: list[HTTPServer] = []
        self.sockets: list[socket.socket] = []

    def listen(self, sockets: list[socket.socket]) -> None:
        """Listen at these sockets, which stay open until `stop`."""
        self.sockets = sockets
        self.come_back()

    def go_behind(self, path: Path) -> None:
        """Listen at a socket of the file system in place of the port. Raises OSError."""
        self._listen([bind_unix_socket(str(path), mode=0o600)])

    def come_back(self) -> None:
        """Listen at the port."""
        # tornado closes the sockets of a server that it stops.
        self._listen([one.dup() for one in self.sockets])

    def stop(self) -> None:
        """Take no more connections."""
        for server in self._servers:
            server.stop()
        for one in self.sockets:
            one.close()
        self.sockets = []

    async def close(self) -> None:
        self.stop()
        for server in self._servers:
            await server.close_all_connections()

    def _listen(self, sockets: list[socket.socket]) -> None:
        for server in self._servers:
            server.stop()
        server = self._make()
        server.add_sockets(sockets)
        self._servers.append(server)
