"""The process that holds an attempt's TCPStore: no rank and no agent, so that none is special."""

from __future__ import annotations

import os
import signal
import socket
from typing import NoReturn

from torch._C._distributed_c10d import TCPStore

from minicluster.runtime.rank import birth


def serve(zygote_pid: int, listening_fd: int) -> NoReturn:
    """Answer on a socket that listens already, until killed."""
    birth.leave_parent(zygote_pid)
    # The store owns the descriptor from here on; this is only to read the address.
    listener = socket.socket(fileno=os.dup(listening_fd))
    host, port = listener.getsockname()[:2]
    listener.close()
    _store = TCPStore(host, port, is_master=True, wait_for_workers=False, master_listen_fd=listening_fd)
    while True:
        signal.pause()
