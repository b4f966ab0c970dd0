"""torchft's manager for a rank that is its own replica group."""

from __future__ import annotations

import hashlib
import logging
import os
import socket
import threading
import urllib.request
from collections.abc import Callable
from concurrent.futures import Executor, Future, InvalidStateError
from contextlib import suppress
from datetime import timedelta
from typing import Any

import torch
from torch._C._distributed_c10d import TCPStore
from torch.distributed import ProcessGroup
from torch.distributed import ProcessGroupGloo as Gloo
from torchft.checkpointing._serialization import _streaming_load
from torchft.checkpointing.http_transport import HTTPTransport
from torchft.manager import Manager
from torchft.process_group import ProcessGroupGloo

from minicluster.train.live import settings
from minicluster.train.live.settings import LiveSettings


class QuorumClient:
    """Wraps the client of torchft's manager server, and stores the newest quorum."""

    def __init__(self, manager: Manager) -> None:
        self._manager = manager
        self._client = manager._client
        self.members: tuple[str, ...] = ()
        self.mark = ""

    def _quorum(self, **asked: Any) -> Any:
        quorum = self._client._quorum(**asked)
        members = tuple(quorum.replica_ids)
        if members != self.members:
            # A restarted lighthouse may give another quorum the same id.
            self._manager._quorum_id = -1
        self.members = members
        digest = hashlib.sha256("|".join(members).encode()).hexdigest()[:16]
        self.mark = f"{quorum.max_step}-{digest}"
        return quorum

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)


class DaemonExecutor(Executor):
    """Makes each call in a daemon thread, so that a call that never returns does not block process exit."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()

        def call() -> None:
            # The waiting caller may have set an exception meanwhile.
            with suppress(InvalidStateError):
                try:
                    result = fn(*args, **kwargs)
                except BaseException as error:
                    future.set_exception(error)
                else:
                    future.set_result(result)

        threading.Thread(target=call, daemon=True, name="minicluster-quorum").start()
        return future


class LiveManager(Manager):
    """A manager whose store, transport and group use the gang's addresses."""

    def __init__(self, around: LiveSettings) -> None:
        # torchft logs each step, and each fault with its stack.
        logging.getLogger("torchft").setLevel(logging.CRITICAL)
        # Each rank hosts its own store: another rank's store would end with that rank.
        self._own_store = TCPStore(around.address, 0, is_master=True, wait_for_workers=False)
        self.group = LiveGroup(lambda: self.client.mark, lambda: self.server_address)
        super().__init__(
            pg=self.group,
            load_state_dict=None,
            state_dict=None,
            min_replica_size=1,
            use_async_quorum=False,
            timeout=settings.CALL,
            quorum_timeout=settings.QUORUM,
            connect_timeout=settings.CONNECT,
            rank=0,
            world_size=1,
            store_addr=around.address,
            store_port=self._own_store.port,
            lighthouse_addr=f"http://{around.lighthouse}",
            # Replicas are sorted by this id, so that the lowest live rank comes first.
            replica_id=around.replica,
            hostname=around.address,
            heartbeat_interval=settings.HEARTBEAT,
            # Without retries, the server makes its rank wait for the whole `quorum_timeout`.
            quorum_retries=settings.LIGHTHOUSE_TRIES,
            checkpoint_transport=PeerTransport(around.address, settings.CALL),
        )
        self._executor.shutdown(wait=False)
        self._executor = DaemonExecutor()  # pyright: ignore[reportAttributeAccessIssue]
        self.client = QuorumClient(self)
        self._client = self.client  # pyright: ignore[reportAttributeAccessIssue]

    @property
    def server_address(self) -> str:
        return self._manager.address() if self._manager else ""

    def let_go(self) -> None:
        """Make the quorum call fail now. Its thread still waits for the lost server."""
        if self._manager:
            self._manager.shutdown()
        if self._quorum_future:
            with suppress(InvalidStateError):
                self._quorum_future.set_exception(ConnectionError("the lighthouse is another one"))

    @property
    def members(self) -> tuple[int, ...]:
        """Return the original numbers of the newest quorum's ranks, in quorum order."""
        return tuple(int(name.split(":")[0].removeprefix("rank-")) for name in self.client.members)

    def start_quorum_anew(self) -> None:
        """Start the next quorum even if the last one raised."""
        self._quorum_future = None
        self.start_quorum()


# A joining rank gets its state from a peer by torchft's transport, by address and without HTTP proxies.


class PeerTransport(HTTPTransport[Any]):
    """Serves this rank's state at its address in the gang.

    By default, torchft announces the machine's host name, which other containers cannot resolve, and fetches
    with urllib's defaults, which use http_proxy.
    """

    def __init__(self, host: str, timeout: timedelta) -> None:
        self._host = host
        super().__init__(timeout=timeout, num_chunks=0)
        handler: Any = self._server.RequestHandlerClass
        handler.log_message = lambda *_: None  # Otherwise each fetch prints a line.

    def address(self) -> str:
        port = self._server.socket.getsockname()[1]
        return f"http://{self._host}:{port}/checkpoint/"

    @classmethod
    def _load_from_address(cls, address: str, timeout: timedelta) -> object:
        direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with direct.open(address, timeout=timeout.total_seconds()) as body:
            # The peer is a rank of the same job, on the gang's own network.
            return _streaming_load(body, weights_only=False)


# The process group, which is reconfigured for each quorum and can be aborted while it waits.


_PEER_KEY = "manager-{}"


class LiveGroup(ProcessGroupGloo):
    """torchft's Gloo group, with fixes for three cases in which it hangs.

    mark: unique id of this quorum: a restarted lighthouse counts from 1 again, and the store would return
    addresses of an earlier group. manager_address: address of this rank's manager; `peers` has those of the
    peers once a group is made.
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
        """Leave the group. Gloo's abort does not end waiting operations, but closing their sockets does."""
        self.break_off()
        # Keep a group that an abandoned operation still uses: freeing it would wait for the operation.
        self._former = [*self._former[-1:], self._pg]
        super().abort(errored=errored)

    def break_off(self) -> None:
        """End all waiting operations here and, since their connections end, on all peers."""
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
        """Exchange the addresses at which the ranks' managers listen."""
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
        # Do not shut a listening socket: Gloo would throw in its own thread and end the process.
        if not copy.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            copy.shutdown(socket.SHUT_RDWR)
