"""The place of an attempt's TCPStore in a task.

A store that was used stays until the whole attempt is over: ranks elsewhere may still ask it.
"""

from __future__ import annotations

import socket

from minicluster.runtime.agent.parent import Child, Parent


class StoreSeat:
    """Keeps one unused TCPStore listening, so that an order to run needs nothing more."""

    def __init__(self, address: str) -> None:
        self.port: int | None = None
        self._address = address
        self._made = 0
        self._child: tuple[Parent, Child] | None = None
        self._used: tuple[Parent, Child] | None = None

    @property
    def parents(self) -> set[Parent]:
        """Those that end with their stores."""
        return {made[0] for made in (self._child, self._used) if made is not None}

    async def pids(self) -> set[int]:
        """Return its processes, once those that are being made are there."""
        children = [made[1] for made in (self._child, self._used) if made is not None]
        for child in children:
            await child.made.wait()
        return {child.pid for child in children if child.pid}

    def renew(self, parent: Parent) -> None:
        """Put a fresh store in the place of the one that was used.

        The socket listens from here on: who connects early waits in its queue.
        """
        self.end_used()
        self._used = self._child
        with socket.create_server((self._address, 0), backlog=1024) as listener:
            self.port = listener.getsockname()[1]
            self._made += 1
            order = f"store-{self._made}", {"kind": "store"}
            self._child = parent, parent.fork(*order, [listener.fileno()])

    def end_used(self) -> None:
        """End the store of an attempt that is over."""
        if self._used is not None:
            parent, child = self._used
            parent.kill(child)
        self._used = None
