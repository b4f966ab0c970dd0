"""The settings that an engine gives an agent in its environment, and how an agent runs as a program."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import ssl
import sys
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from minicluster.errors import MiniclusterError
from minicluster.runtime.network import source_address

TOKEN_FILE = "MINICLUSTER_TOKEN_FILE"  # noqa: S105 - a variable's name
CA_ENV = "MINICLUSTER_SERVICE_CA"
"""The certificate of the cluster's own authority as PEM text: it is no secret."""


class SettingsIncomplete(MiniclusterError):
    """An agent was started without a setting that it needs."""


@dataclass(frozen=True)
class AgentSettings:
    """service_urls: of all job services, each with a slash at its end.

    address: at which other tasks of the gang reach this one; by default this machine's address on the route
    to the service. An engine may set a name instead: that of a container on the gang's network.
    service_blobs: the folder of the job service's blobs, if the task runs beside it as the same user.
    """

    service_urls: tuple[str, ...]
    token: str
    scratch: Path
    node: str
    address: str
    service_blobs: str = ""

    @classmethod
    def from_environ(cls, environ: Mapping[str, str] = os.environ) -> AgentSettings:
        """Raises SettingsIncomplete."""
        urls = service_urls(environ)
        host = urlsplit(urls[0]).hostname or "127.0.0.1"
        return cls(
            service_urls=urls,
            token=read_token(environ),
            scratch=Path(need(environ, "MINICLUSTER_SCRATCH")),
            node=need(environ, "MINICLUSTER_NODE"),
            address=_resolved(environ.get("MINICLUSTER_ADDRESS", "")) or source_address(host),
            service_blobs=environ.get("MINICLUSTER_SERVICE_BLOBS", ""),
        )


def _resolved(name: str) -> str:
    """Resolve a name; return an address unchanged."""
    try:
        return socket.gethostbyname(name) if name else ""
    except OSError as error:
        raise SettingsIncomplete(f"MINICLUSTER_ADDRESS={name} cannot be resolved: {error}.") from error


def need(environ: Mapping[str, str], name: str) -> str:
    """Return a variable. Raises SettingsIncomplete."""
    value = environ.get(name, "")
    if not value:
        raise SettingsIncomplete(f"{name} is not set.", "An agent is started by an engine, which sets it.")
    return value


def service_urls(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the job services' URLs, each with a slash at its end. Raises SettingsIncomplete."""
    urls = need(environ, "MINICLUSTER_SERVICE_URL").split(",")
    return tuple(url.strip().rstrip("/") + "/" for url in urls)


def read_token(environ: Mapping[str, str]) -> str:
    """Return what the token file holds. Raises SettingsIncomplete."""
    path = Path(need(environ, TOKEN_FILE))
    try:
        return path.read_text().strip()
    except OSError as error:
        raise SettingsIncomplete(f"The token file {path} cannot be read: {error.strerror}.") from error


def service_trust(environ: Mapping[str, str] = os.environ) -> ssl.SSLContext | None:
    """Return what verifies the job service by the cluster's own authority; None where no authority is named.

    Raises SettingsIncomplete.
    """
    ca_pem = environ.get(CA_ENV, "")
    if not ca_pem:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    # The authority signed only one certificate and its key was deleted, so a host's name proves nothing more.
    # And the service may move to a machine that was added after this task had started.
    context.check_hostname = False
    try:
        context.load_verify_locations(cadata=ca_pem)
    except ssl.SSLError as error:
        raise SettingsIncomplete(f"{CA_ENV} holds no certificate: {error}.") from error
    return context


def log_to_stderr() -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    logging.getLogger("httpx").setLevel(logging.WARNING)


async def run_until_signalled(work: Awaitable[None]) -> None:
    """Wait for the work to be over, or end it by SIGTERM or SIGINT."""
    running = asyncio.current_task()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, running.cancel if running else sys.exit)
    with contextlib.suppress(asyncio.CancelledError):
        await work
