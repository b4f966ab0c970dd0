"""First steps of a forked child: it drops what it inherited from the zygote."""

from __future__ import annotations

import io
import os
import signal
import socket
import sys
from typing import NoReturn

from torch._C._distributed_c10d import TCPStore

from minicluster.runtime import system


def detach_from_zygote(zygote_pid: int) -> None:
    """Start a new session, make the child end with the zygote, and reset the zygote's signal handlers."""
    if os.getsid(0) != os.getpid():  # A fresh Python in this process has one already.
        os.setsid()
    system.die_with_parent(zygote_pid)
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGCHLD, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)


def take_streams(output_fd: int) -> None:
    """Connect stdout and stderr to one pipe, which preserves their order, and stdin to /dev/null.

    Python does not buffer: printed text is in the pipe even if the process is killed.
    """
    null = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((null, 0), (output_fd, 1), (output_fd, 2)):
        os.dup2(source, target)
    os.close(null)
    os.close(output_fd)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115 - stays open for the life of the process
    sys.stdout = sys.__stdout__ = _text(1, "replace")
    sys.stderr = sys.__stderr__ = _text(2, "backslashreplace")


def _text(fd: int, errors: str) -> io.TextIOWrapper:
    raw = open(fd, "wb", buffering=0, closefd=False)  # noqa: SIM115 - as above
    return io.TextIOWrapper(raw, encoding="utf-8", errors=errors, write_through=True)  # type: ignore[arg-type]


# A separate process hosts an attempt's TCPStore, so that it depends on no rank and no agent.


def serve_store(zygote_pid: int, listening_fd: int) -> NoReturn:
    """Serve the store on a listening socket until killed."""
    detach_from_zygote(zygote_pid)
    # The store will own the descriptor; the copy serves only to read the address.
    listener = socket.socket(fileno=os.dup(listening_fd))
    host, port = listener.getsockname()[:2]
    listener.close()
    _store = TCPStore(host, port, is_master=True, wait_for_workers=False, master_listen_fd=listening_fd)
    while True:
        signal.pause()
