"""The relay: doors on each node's loopback that lead to the cluster's registry; HAProxy does the work.

Docker engines accept a registry on 127.0.0.0/8 without TLS and without configuration. The relay takes
their requests there and goes to the registry with TLS, verified by our own authority, and with the
reader's password. That one may write, too, for all that the registry knows: so a door with it only reads.
"""

from __future__ import annotations

import base64
import json
import os
import sys
import tempfile
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
_AUTHORIZATION_ENV = "MINICLUSTER_RELAY_AUTHORIZATION"
"""HAProxy reads it from its own environment, so that no file holds it."""

_COMMON = """\
global
    maxconn 1024
    # One is enough for a gigabit line several times over, and costs the least.
    nbthread 1
    log stdout format raw local0

defaults
    mode http
    log global
    option httplog
    option dontlog-normal
    timeout http-request 30s
    # A cache may be silent for minutes while it fetches; a reader may be slow.
    timeout client 1h
    timeout server 1h
    # Another place at once, the same place (it may just be starting) after a second.
    retries 4
    option redispatch 1
    # A manager without power sends no last packet: that is found out within about 30 s.
    option srvtcpka
    srvtcpka-idle 10s
    srvtcpka-intvl 5s
    srvtcpka-cnt 4
"""
_DOOR = """
frontend {name}
    bind {host}:{port}{only_reads}
    default_backend {name}

backend {name}
    timeout connect {patience}
    errorfile 503 {away_file}{servers}
"""
_ONLY_READS = """
    http-request return status 405 {refusal} unless METH_GET
    http-request set-header Authorization "Basic ${{{authorization}}}\""""
_SERVER = """
    server place{number} {address} ssl ca-file {ca_file} verify required verifyhost registry{check}"""
_CHECK = " check inter 5s fastinter 1s"


class RelayError(ClusterError):
    """What keeps the relay from starting, in one sentence."""


@dataclass(frozen=True)
class Door:
    """One port of the loopback and where it leads: everywhere that the registry may be."""

    name: str
    port: int
    what: str
    places: tuple[str, ...]
    only_reads: bool = True


def doors(environ: Mapping[str, str]) -> list[Door]:
    """Read from the environment which doors this node has. Raises RelayError."""
    registry, cache = environ.get(REGISTRY_ENV, ""), environ.get(CACHE_ENV, "")
    if not registry:
        raise RelayError(f"The relay was not told where the registry is: set {REGISTRY_ENV}=HOST:PORT.")
    found = [Door("registry", REGISTRY_DOOR, "registry", _places(registry))]
    if cache:
        found.append(Door("cache", CACHE_DOOR, "cache", _places(cache)))
    if environ.get(NODE_ENV, "-") in environ.get(PUBLISH_NODE_ENV, "").split(","):
        found.append(Door("publish", PUBLISH_DOOR, "registry", _places(registry), only_reads=False))
    return found


def config(found: list[Door], ca_file: str, folder: Path) -> str:
    """Return haproxy.cfg. folder: where what each door says of a registry that is away is written."""
    return _COMMON + "".join(_door(door, ca_file, folder) for door in found)


def away(door: Door) -> str:
    """Return the answer in place of a registry that is away; of a 5xx Docker shows the first line."""
    where = ", ".join(door.places)
    why = "connection refused, no answer, or not its certificate"
    words = f"the cluster's {door.what} at {where} cannot be reached ({why}); the command doctor tells more"
    body = _error("UNAVAILABLE", words)
    lines = [f"HTTP/1.1 503 Service Unavailable: {words}", "Content-Type: application/json"]
    return "\r\n".join([*lines, f"Content-Length: {len(body)}", "", body])


def authorization(environ: Mapping[str, str]) -> str:
    """Return what says that the relay is the registry's reader. Raises RelayError."""
    reader = _read_secret(environ.get(READER_FILE_ENV, _READER_FILE)).strip()
    return base64.b64encode(reader.encode()).decode()


def command(found: list[Door], environ: Mapping[str, str], folder: Path) -> tuple[list[str], dict[str, str]]:
    """Write what HAProxy reads; return how it is started, and its environment. Raises RelayError."""
    ca_file = environ.get(CA_FILE_ENV, _CA_FILE)
    _read_secret(ca_file)
    for door in found:
        _away_file(door, folder).write_bytes(away(door).encode())
    file = folder / "haproxy.cfg"
    file.write_text(config(found, ca_file, folder))
    return ["haproxy", "-db", "-f", str(file)], {**environ, _AUTHORIZATION_ENV: authorization(environ)}


def main() -> int:
    """Become the relay of this node by the environment's settings; return only where that is impossible."""
    try:
        words, environment = command(doors(os.environ), os.environ, Path(tempfile.mkdtemp()))
    except RelayError as error:
        print(error, file=sys.stderr)  # noqa: T201
    else:
        os.execvpe(words[0], words, environment)  # noqa: S606 - a list, no shell
    return 1


def _door(door: Door, ca_file: str, folder: Path) -> str:
    refusal = _error(
        "UNSUPPORTED", f"this door only reads; publish at {HOST}:{PUBLISH_DOOR} on the first manager"
    )
    refusal = f"""content-type application/json hdr Allow "GET, HEAD" string '{refusal}'"""
    only_reads = _ONLY_READS.format(refusal=refusal, authorization=_AUTHORIZATION_ENV)
    # With one place there is nothing to choose: its state shows at the next request, and it may be slow.
    several = len(door.places) > 1
    return _DOOR.format(
        name=door.name,
        host=HOST,
        port=door.port,
        only_reads=only_reads if door.only_reads else "",
        away_file=_away_file(door, folder),
        patience="2s" if several else "5s",
        servers="".join(
            _SERVER.format(number=number, address=place, ca_file=ca_file, check=_CHECK if several else "")
            for number, place in enumerate(door.places)
        ),
    )


def _away_file(door: Door, folder: Path) -> Path:
    return folder / f"{door.name}.http"


def _error(code: str, message: str) -> str:
    return json.dumps({"errors": [{"code": code, "message": message, "detail": None}]})


def _places(upstreams: str) -> tuple[str, ...]:
    return tuple(_checked(upstream) for upstream in upstreams.split(","))


def _checked(address: str) -> str:
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise RelayError(f"{address!r} is no address of a registry: it has to be HOST:PORT.")
    return address


def _read_secret(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError as error:
        raise RelayError(
            f"The relay cannot read {path} ({error.strerror}): its service lacks that secret. Run `up` again."
        ) from error
