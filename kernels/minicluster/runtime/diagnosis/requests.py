"""What an agent asks of a rank while its cell runs: lines of JSON on a named pipe, which a thread reads.

A rank that holds Python's lock, or that has ended, does not answer.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

COLLECTIVE, PROFILE = "collective", "profile"
"""A number to answer with where the rank is; a number of steps to profile."""


def listen(pipe: Path, handlers: Mapping[str, Callable[[int], None]]) -> None:
    """Start the thread that hands each request's number to its handler. Raises OSError."""
    os.mkfifo(pipe, 0o600)
    # For writing as well: with no writer, reading would not wait.
    fd = os.open(pipe, os.O_RDWR | os.O_CLOEXEC)
    threading.Thread(target=_serve, args=(fd, handlers), name="minicluster-requests", daemon=True).start()


def _serve(fd: int, handlers: Mapping[str, Callable[[int], None]]) -> None:
    with os.fdopen(fd, "rb", buffering=0) as pipe:
        rest = b""
        while data := pipe.read(4096):
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                with suppress(ValueError, KeyError, TypeError):  # The cell can write here, too.
                    what, number = json.loads(line)
                    handlers[what](int(number))


def send(pipe: Path, what: str, number: int) -> bool:
    """Write a request; return whether a rank reads there."""
    try:
        fd = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:  # There is no pipe yet, or nobody reads it any more.
        return False
    try:
        return bool(os.write(fd, json.dumps([what, number]).encode() + b"\n"))
    except OSError:
        return False
    finally:
        os.close(fd)
