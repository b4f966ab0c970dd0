"""What ranks tell each other through the attempt's store: the addresses of their servers, and their ends."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import cached_property

from torch._C._distributed_c10d import TCPStore
from torch.distributed import DistStoreError

from minicluster.runtime.network import source_address
from minicluster.wire import RunOrder

_KEY = "minicluster-libraries"
_WAIT = timedelta(seconds=0.5)
"""For one wait at the store. It must be short, since no signal interrupts it."""
_CALL = timedelta(seconds=60)
_REPORT_AFTER_S = 2.0


class ReservedPort:
    """A port of this machine that nobody else gets, for a server that the framework starts later.

    It is bound with SO_REUSEPORT, but nobody listens on it. A gRPC server that sets the same option can bind
    it, too, and gets all connections; a process that asks for any free port never gets it.
    """

    def __init__(self, peer: str) -> None:
        """peer: the address is that on the way to this one."""
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        host = source_address(peer)
        self._socket.bind((host, 0))
        self.address = f"{host}:{self._socket.getsockname()[1]}"


class Meeting:
    """One rank's connection to the attempt's store, which is of this attempt alone."""

    def __init__(self, order: RunOrder, rank: int) -> None:
        self._order = order
        self._rank = rank

    @property
    def size(self) -> int:
        return self._order.world_size

    def tell(self, what: str, text: str) -> None:
        """Tell the other ranks something about this one."""
        self._store.set(f"{_KEY}-{what}-{self._rank}", text)

    def hear(self, what: str, ranks: Sequence[int]) -> list[str]:
        """Return what these ranks told, once all have."""
        self.wait(what, ranks, lambda rank: None)
        return [self._store.get(f"{_KEY}-{what}-{rank}").decode() for rank in ranks]

    def wait(self, what: str, ranks: Sequence[int], report: Callable[[int], None]) -> None:
        """Wait until all these ranks have told something. report: called with one that is late."""
        began, reported = time.monotonic(), -1
        for rank in ranks:
            while not self._is_there(f"{_KEY}-{what}-{rank}"):
                if time.monotonic() - began > _REPORT_AFTER_S and reported != rank:
                    reported = rank
                    report(rank)

    def _is_there(self, key: str) -> bool:
        with suppress(DistStoreError):  # Not yet.
            self._store.wait([key], _WAIT)
            return True
        return False

    @cached_property
    def _store(self) -> TCPStore:
        address = self._order.master_addr, self._order.master_port
        return TCPStore(*address, is_master=False, timeout=_CALL)
