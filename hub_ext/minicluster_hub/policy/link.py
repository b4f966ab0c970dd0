"""The link between the job service and a policy's process: JSON messages with a length prefix."""

from __future__ import annotations

import json
import socket
import struct
import time
from typing import Any

_LENGTH = struct.Struct("!I")


class LinkLost(Exception):
    """The other end is closed."""


def send(link: socket.socket, message: object, until: float | None = None) -> None:
    """Send a message. until: the latest moment, by time.monotonic(). Raises TimeoutError, LinkLost."""
    data = json.dumps(message).encode()
    try:
        _limit(link, until)
        link.sendall(_LENGTH.pack(len(data)) + data)
    except TimeoutError:
        raise
    except OSError as error:
        raise LinkLost(str(error)) from error


def receive(link: socket.socket, most_bytes: int | None = None, until: float | None = None) -> Any:
    """Return the next message. Raises TimeoutError, LinkLost, and ValueError if not JSON or too long."""
    (length,) = _LENGTH.unpack(_read(link, _LENGTH.size, until))
    if most_bytes is not None and length > most_bytes:
        raise ValueError(f"a message of {length} bytes; the limit is {most_bytes}")
    data = _read(link, length, until)
    try:
        return json.loads(data)
    except RecursionError as error:
        raise ValueError("a message that is nested too deeply") from error


def is_quiet(link: socket.socket) -> bool:
    """Return whether the link is open and nothing is left to read."""
    try:
        link.setblocking(False)
        link.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def _read(link: socket.socket, count: int, until: float | None) -> bytes:
    data = bytearray()
    while len(data) < count:
        try:
            _limit(link, until)
            part = link.recv(min(count - len(data), 1 << 16))
        except TimeoutError:
            raise
        except OSError as error:
            raise LinkLost(str(error)) from error
        if not part:
            raise LinkLost("the other end is closed")
        data += part
    return bytes(data)


def _limit(link: socket.socket, until: float | None) -> None:
    if until is None:
        link.settimeout(None)
        return
    left_s = until - time.monotonic()
    if left_s <= 0:
        raise TimeoutError
    link.settimeout(left_s)
