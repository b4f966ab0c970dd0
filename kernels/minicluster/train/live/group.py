"""The process group of one quorum after the other, which can be broken off while it waits."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch
from torch.distributed import ProcessGroup
from torch.distributed import ProcessGroupGloo as Gloo
from torchft.process_group import ProcessGroupGloo

from minicluster.train.live import settings

_PEER_KEY = "manager-{}"


class LiveGroup(ProcessGroupGloo):
    """torchft's Gloo group, with three of its ways to hang closed.

    mark: what tells this quorum from all others, since a lighthouse that was started again counts
    from 1, and the store would give addresses of an earlier group. manager_address: where this
    rank's manager listens; the peers' are in `peers` once a group is made.
    """

    def __init__(self, mark: Callable[[], str], manager_address: Callable[[], str]) -> None:
        super().__init__(timeout=settings.MEET)
        self.peers: dict[int, str] = {}
        self._mark = mark
        self._manager_address = manager_address
        self._sockets: set[tuple[int, str]] = set()
        self._former: list[Any] = []

    def configure(self, store_addr: str, *args: Any, **kwargs: Any) -> None:
        try:
            super().configure(f"{store_addr}/{self._mark()}", *args, **kwargs)
        except Exception:
            self._timeout = min(2 * self._timeout, settings.MEET_MOST)
            raise
        self._timeout = settings.MEET

    def abort(self, errored: bool = True) -> None:
        """Leave the group. Gloo's own abort does not end an operation that waits; closed sockets do."""
        self.break_off()
        # One that an abandoned operation still holds must not be collected: that would wait for it.
        self._former = [*self._former[-1:], self._pg]
        super().abort(errored=errored)

    def break_off(self) -> None:
        """End all operations that wait, here and, as they see the connections end, on all peers."""
        for number, name in self._sockets:
            with suppress(OSError):
                if _name_of(number) == name:
                    _shut(number)
        self._sockets = set()

    def _create_pg(self, store: Any, rank: int, world_size: int) -> Any:
        before = _sockets()
        group = ProcessGroup(store, rank, world_size)
        group._set_default_backend(ProcessGroup.BackendType.GLOO)
        gloo = Gloo(store, rank, world_size, self._timeout)
        self._sockets = _sockets() - before
        gloo._set_sequence_number_for_group()
        gloo._set_default_timeout(settings.COLLECTIVE)
        for kind in ("cpu", *(("cuda",) if torch.cuda.is_available() else ())):
            group._register_backend(torch.device(kind), ProcessGroup.BackendType.GLOO, gloo)
        self._meet(store, rank, world_size)
        return group

    def _meet(self, store: Any, rank: int, world_size: int) -> None:
        """Tell the peers where this rank's manager listens, and learn it of them."""
        store.set(_PEER_KEY.format(rank), self._manager_address())
        others = (peer for peer in range(world_size) if peer != rank)
        self.peers = {peer: store.get(_PEER_KEY.format(peer)).decode() for peer in others}


def _sockets() -> set[tuple[int, str]]:
    found = set()
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 - pathlib would open each of them
        with suppress(OSError):
            target = _name_of(int(name))
            if target.startswith("socket:"):
                found.add((int(name), target))
    return found


def _name_of(number: int) -> str:
    return os.readlink(f"/proc/self/fd/{number}")  # noqa: PTH115 - the target is no path


def _shut(number: int) -> None:
    with socket.socket(fileno=os.dup(number)) as copy:
        # A listener that is shut would end the process: Gloo throws in a thread of its own.
        if not copy.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            copy.shutdown(socket.SHUT_RDWR)
