"""The relay: ports on each node's loopback that lead to the cluster's registry; HAProxy does the work.

Docker engines accept a registry on 127.0.0.0/8 without TLS and without configuration. The relay accepts
their requests there and sends them to the registry with TLS, verified by our own authority, and with the
reader's password. With it the registry would accept writes, too: so a port that adds it refuses writes.
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
RELAY_REGISTRY_PORT, RELAY_CACHE_PORT, RELAY_PUBLISH_PORT = 5100, 5101, 5102
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
    # Try another manager at once, the same one (it may just be starting) after a second.
    retries 4
    option redispatch 1
    # A manager without power sends no last packet: that is found out within about 30 s.
    option srvtcpka
    srvtcpka-idle 10s
    srvtcpka-intvl 5s
    srvtcpka-cnt 4
"""
_FRONTEND = """
frontend {name}
    bind {host}:{port}{only_reads}
    default_backend {name}

backend {name}
    timeout connect {connect_s}s
    errorfile 503 {error_file}{servers}
"""
_ONLY_READS = """
    http-request return status 405 {refusal} unless METH_GET
    http-request set-header Authorization "Basic ${{{authorization}}}\""""
_SERVER = """
    server place{number} {address} ssl ca-file {ca_file} verify required verifyhost registry{check}"""
_CHECK = " check inter 5s fastinter 1s"


class RelayError(ClusterError):
    """The relay cannot start; the message is one sentence."""


@dataclass(frozen=True)
class Frontend:
    """A port of the loopback. upstreams: HOST:PORT of each manager that the registry may run on."""

    name: str
    port: int
    registry: str
    upstreams: tuple[str, ...]
    only_reads: bool = True


def frontends(environ: Mapping[str, str]) -> list[Frontend]:
    """Read this node's ports from the environment. Raises RelayError."""
    registry, cache = environ.get(REGISTRY_ENV, ""), environ.get(CACHE_ENV, "")
    if not registry:
        raise RelayError(f"The relay does not know where the registry is: set {REGISTRY_ENV}=HOST:PORT.")
    found = [Frontend("registry", RELAY_REGISTRY_PORT, "registry", _upstreams(registry))]
    if cache:
        found.append(Frontend("cache", RELAY_CACHE_PORT, "cache", _upstreams(cache)))
    if environ.get(NODE_ENV, "-") in environ.get(PUBLISH_NODE_ENV, "").split(","):
        found.append(
            Frontend("publish", RELAY_PUBLISH_PORT, "registry", _upstreams(registry), only_reads=False)
        )
    return found


def config(found: list[Frontend], ca_file: str, folder: Path) -> str:
    """Return haproxy.cfg. folder: of the answers in place of an unreachable registry."""
    return _COMMON + "".join(_section(frontend, ca_file, folder) for frontend in found)


def unreachable_answer(frontend: Frontend) -> str:
    """Return the answer in place of an unreachable registry; Docker shows the first line of a 5xx."""
    where = ", ".join(frontend.upstreams)
    why = "connection refused, no answer, or not its certificate"
    text = f"the cluster's {frontend.registry} at {where} cannot be reached ({why})"
    text += "; the command doctor tells more"
    body = _error("UNAVAILABLE", text)
    lines = [f"HTTP/1.1 503 Service Unavailable: {text}", "Content-Type: application/json"]
    return "\r\n".join([*lines, f"Content-Length: {len(body)}", "", body])


def command(
    found: list[Frontend], environ: Mapping[str, str], folder: Path
) -> tuple[list[str], dict[str, str]]:
    """Write HAProxy's files; return the command that starts it, and its environment. Raises RelayError."""
    ca_file = environ.get(CA_FILE_ENV, _CA_FILE)
    _read_secret(ca_file)
    reader = _read_secret(environ.get(READER_FILE_ENV, _READER_FILE)).strip()
    for frontend in found:
        _error_file(frontend, folder).write_bytes(unreachable_answer(frontend).encode())
    file = folder / "haproxy.cfg"
    file.write_text(config(found, ca_file, folder))
    authorization = base64.b64encode(reader.encode()).decode()
    return ["haproxy", "-db", "-f", str(file)], {**environ, _AUTHORIZATION_ENV: authorization}


def main() -> int:
    """Exec this node's relay with the environment's settings; return only if that is impossible."""
    try:
        words, environment = command(frontends(os.environ), os.environ, Path(tempfile.mkdtemp()))
    except RelayError as error:
        print(error, file=sys.stderr)  # noqa: T201
        return 1
    return os.execvpe(words[0], words, environment)  # noqa: S606 - a list, no shell


def _section(frontend: Frontend, ca_file: str, folder: Path) -> str:
    message = f"this port only reads; publish at {HOST}:{RELAY_PUBLISH_PORT} on the first manager"
    answer = (
        f"""content-type application/json hdr Allow "GET, HEAD" string '{_error("UNSUPPORTED", message)}'"""
    )
    only_reads = _ONLY_READS.format(refusal=answer, authorization=_AUTHORIZATION_ENV)
    # With one upstream there is no choice: the next request shows its state, and it may be slow.
    several = len(frontend.upstreams) > 1
    return _FRONTEND.format(
        name=frontend.name,
        host=HOST,
        port=frontend.port,
        only_reads=only_reads if frontend.only_reads else "",
        error_file=_error_file(frontend, folder),
        connect_s=2 if several else 5,
        servers="".join(
            _SERVER.format(number=number, address=address, ca_file=ca_file, check=_CHECK if several else "")
            for number, address in enumerate(frontend.upstreams)
        ),
    )


def _error_file(frontend: Frontend, folder: Path) -> Path:
    return folder / f"{frontend.name}.http"


def _error(code: str, message: str) -> str:
    return json.dumps({"errors": [{"code": code, "message": message, "detail": None}]})


def _upstreams(addresses: str) -> tuple[str, ...]:
    found = tuple(addresses.split(","))
    for address in found:
        host, _, port = address.rpartition(":")
        if not host or not port.isdigit():
            raise RelayError(f"{address!r} is no address of a registry: it has to be HOST:PORT.")
    return found


def _read_secret(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError as error:
        raise RelayError(
            f"The relay cannot read {path} ({error.strerror}): its service lacks that secret. Run `up` again."
        ) from error
