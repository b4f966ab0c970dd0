"""Which ports a cluster uses: those of the last start, if they are free.

Tasks that survive a crash of the job service reach it again only at the same port.
"""

from __future__ import annotations

import errno
import json
import socket
from dataclasses import asdict, fields
from pathlib import Path

from minicluster_hub.launch.errors import PortTaken
from minicluster_hub.settings import Ports


def check_public(host: str, port: int) -> None:
    """Check that the port for browsers can be opened. Raises PortTaken."""
    try:
        _bind(host, port).close()
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            reason = "is in use by another program"
        else:
            reason = f"cannot be opened ({error.strerror or error})"
        raise PortTaken(f"Port {port} on {host} {reason}. Choose another with --port or --host.") from error


def choose_public(host: str) -> int:
    """Return a port that is free now."""
    with _bind(host, 0) as listener:
        return listener.getsockname()[1]


def choose(file: Path) -> Ports:
    """Return loopback ports for hub, proxy and service, and write them to a file for the next start."""
    before = _read(file)
    listeners = {field.name: _bind_or_any(before.get(field.name, 0)) for field in fields(Ports)}
    ports = Ports(**{name: listener.getsockname()[1] for name, listener in listeners.items()})
    for listener in listeners.values():
        listener.close()
    file.write_text(json.dumps(asdict(ports)))
    return ports


def _read(file: Path) -> dict[str, int]:
    try:
        ports = json.loads(file.read_text())
        return {name: int(port) for name, port in ports.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def _bind_or_any(port: int) -> socket.socket:
    try:
        return _bind("127.0.0.1", port)
    except (OSError, OverflowError):
        return _bind("127.0.0.1", 0)


def _bind(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(1)
    except BaseException:
        listener.close()
        raise
    return listener
