"""The place of an attempt's TCPStore in a task."""

from __future__ import annotations

import contextlib
import os
import signal
import socket

from .parent import Child, Parent


class StoreSeat:
    """Keeps one unused TCPStore listening, so that an order to run needs nothing more."""

    def __init__(self, address: str, parent: Parent) -> None:
        self.port: int | None = None
        self._address = address
        self._parent = parent
        self._made = 0
        self._child: Child | None = None

    @property
    def pid(self) -> int | None:
        return self._child.pid if self._child else None

    def renew(self) -> None:
        """Put a fresh store in the place of the one that was used.

        The socket listens from here on: who connects early waits in its queue.
        """
        if self.pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
        with socket.create_server((self._address, 0), backlog=1024) as listener:
            self.port = listener.getsockname()[1]
            self._made += 1
            self._child = self._parent.fork(f"store-{self._made}", {"kind": "store"}, [listener.fileno()])
