"""Which doors a node's relay has and where they lead, from the environment and from secrets."""

from __future__ import annotations

import base64
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from minicluster_hub.cluster.errors import ClusterError

HOST = "127.0.0.1"
REGISTRY_DOOR, CACHE_DOOR, PUBLISH_DOOR = 5100, 5101, 5102
REGISTRY_ENV, CACHE_ENV = "MINICLUSTER_RELAY_REGISTRY", "MINICLUSTER_RELAY_CACHE"
PUBLISH_NODE_ENV, NODE_ENV = "MINICLUSTER_RELAY_PUBLISH_NODE", "MINICLUSTER_NODE_ID"
CA_FILE_ENV, READER_FILE_ENV = "MINICLUSTER_RELAY_CA_FILE", "MINICLUSTER_RELAY_READER_FILE"
_CA_FILE, _READER_FILE = "/run/secrets/registry_ca", "/run/secrets/registry_reader"


class RelayError(ClusterError):
    """What keeps the relay from starting, in one sentence."""


@dataclass(frozen=True)
class Door:
    """One port of the loopback and where it leads. authorization None: everything passes as it is.

    others: where else the registry may be, if it runs on any of several managers.
    """

    port: int
    what: str
    host: str
    upstream_port: int
    authorization: bytes | None
    others: tuple[tuple[str, int], ...] = ()

    @property
    def upstream(self) -> str:
        return f"{self.host}:{self.upstream_port}"

    @property
    def places(self) -> tuple[tuple[str, int], ...]:
        """Everywhere that the registry may be."""
        return ((self.host, self.upstream_port), *self.others)


def doors(environ: Mapping[str, str]) -> list[Door]:
    """Read from the environment which doors this node has."""
    registry, cache = environ.get(REGISTRY_ENV, ""), environ.get(CACHE_ENV, "")
    if not registry:
        raise RelayError(f"The relay was not told where the registry is: set {REGISTRY_ENV}=HOST:PORT.")
    reader = _read_secret(environ.get(READER_FILE_ENV, _READER_FILE)).strip()
    authorization = b"Basic " + base64.b64encode(reader.encode())
    found = [_door(REGISTRY_DOOR, "registry", registry, authorization)]
    if cache:
        found.append(_door(CACHE_DOOR, "cache", cache, authorization))
    if environ.get(NODE_ENV, "-") in environ.get(PUBLISH_NODE_ENV, "").split(","):
        found.append(_door(PUBLISH_DOOR, "registry", registry, None))
    return found


def trust(environ: Mapping[str, str]) -> ssl.SSLContext:
    """Make the TLS settings that accept our own authority's certificates and no others."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        context.load_verify_locations(cadata=_read_secret(environ.get(CA_FILE_ENV, _CA_FILE)))
    except ssl.SSLError as error:
        raise RelayError(f"The authority's certificate is no PEM text ({error}). Run `up` again.") from error
    return context


def _door(port: int, what: str, upstreams: str, authorization: bytes | None) -> Door:
    first, *others = [_address(upstream) for upstream in upstreams.split(",")]
    return Door(port, what, *first, authorization, tuple(others))


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit():
        raise RelayError(f"{text!r} is no address of a registry: it has to be HOST:PORT.")
    return host.strip("[]"), int(port)


def _read_secret(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError as error:
        raise RelayError(
            f"The relay cannot read {path} ({error.strerror}): its service lacks that secret. Run `up` again."
        ) from error
