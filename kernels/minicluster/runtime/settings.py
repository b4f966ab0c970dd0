"""What the engine tells an agent through its environment."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from minicluster.errors import MiniclusterError
from minicluster.runtime.network import source_address

TOKEN_FILE = "MINICLUSTER_TOKEN_FILE"  # noqa: S105 - a variable's name


class SettingsIncomplete(MiniclusterError):
    """The agent was started without what it needs to know."""


@dataclass(frozen=True)
class AgentSettings:
    """service_url: of the job service, or of several with commas between them.

    address: where other tasks of the gang reach this one; by default the route to the service.

    An engine may tell a name instead, that of a container on the gang's network.
    """

    service_url: str
    token: str
    scratch: Path
    node: str
    address: str

    @classmethod
    def from_environ(cls, environ: Mapping[str, str] = os.environ) -> AgentSettings:
        urls = [url.strip() for url in need(environ, "MINICLUSTER_SERVICE_URL").split(",")]
        host = urlsplit(urls[0]).hostname or "127.0.0.1"
        return cls(
            service_url=",".join(url if url.endswith("/") else f"{url}/" for url in urls),
            token=read_token(Path(need(environ, TOKEN_FILE))),
            scratch=Path(need(environ, "MINICLUSTER_SCRATCH")),
            node=need(environ, "MINICLUSTER_NODE"),
            address=_resolved(environ.get("MINICLUSTER_ADDRESS", "")) or source_address(host),
        )


def _resolved(name: str) -> str:
    """Return the address of a name; an address stays what it is."""
    if not name:
        return ""
    try:
        return socket.gethostbyname(name)
    except OSError as error:
        raise SettingsIncomplete(f"MINICLUSTER_ADDRESS={name} leads to no address: {error}.") from error


def need(environ: Mapping[str, str], name: str) -> str:
    """Return a variable. Raises SettingsIncomplete."""
    value = environ.get(name, "")
    if not value:
        raise SettingsIncomplete(f"{name} is not set.", "An agent is started by an engine, which sets it.")
    return value


def read_token(path: Path) -> str:
    """Return what a token file holds. Raises SettingsIncomplete."""
    try:
        return path.read_text().strip()
    except OSError as error:
        raise SettingsIncomplete(f"The token file {path} cannot be read: {error.strerror}.") from error
