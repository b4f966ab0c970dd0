"""Makes the default process group before the cell runs; scripts may still make their own.

A script written for torchrun calls init_process_group() itself. With the same arguments it gets the existing
group; with others it gets a new one, which uses a new prefix of the store's keys. Its init_method (tcp://,
file://) is ignored: all ranks use the job's store.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import socket
from collections.abc import Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, TCPStore
from torch.distributed import distributed_c10d

from minicluster.errors import MiniclusterError
from minicluster.runtime.network import interface_to, source_address
from minicluster.runtime.rank.environment import AGENT_STORE
from minicluster.runtime.rank.groups.held_models import held_models, onto_new_group
from minicluster.train.live.settings import ADDRESS
from minicluster.train.strategies import rank as divided

_INTERFACE_VARIABLES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "TP_SOCKET_IFNAME")


def choose_interface(master: str) -> None:
    """Make Gloo and NCCL use the interface that leads to the gang, unless the user has set one."""
    name = interface_to(master)
    for variable in _INTERFACE_VARIABLES:
        if name and variable not in os.environ:
            os.environ[variable] = name


class NoFixedGroup(MiniclusterError):
    """A cell of a fault-tolerant job requested a process group."""


def forbid_process_group(master: str) -> None:
    """Refuse process groups in a fault-tolerant job: a fixed group fails with the first lost rank."""
    os.environ[ADDRESS] = source_address(master)
    os.environ.setdefault("RUST_LOG", "error")  # By default, torchft's servers log each step.
    for module in (dist, distributed_c10d):
        vars(module).update(init_process_group=_refuse)


def _refuse(*_args: Any, **_kwargs: Any) -> None:
    raise NoFixedGroup(
        "A fault-tolerant job has no fixed process group: its ranks come and go.",
        "Use mc.prepare(), or leave --fault-tolerant out.",
    )


OpenSocket = tuple[int, str]
"""A descriptor, and which socket it is: the number may be used again for another one."""


def _open_sockets() -> set[OpenSocket]:
    found: set[OpenSocket] = set()
    for path in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            found.add((int(path.name), str(path.readlink())))
    return {one for one in found if one[1].startswith("socket:")}


_MADE, _ALL_MADE = "minicluster-groups-made", "minicluster-all-groups-made"
_LEAVE_WITHIN = timedelta(seconds=30)


class DefaultProcessGroup:
    """Makes the first group and replaces torch's init and destroy functions."""

    def __init__(self, backend: str) -> None:
        self._backend = backend
        self._rank = int(os.environ["RANK"])
        self._world_size = int(os.environ["WORLD_SIZE"])
        address = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
        self._pid = os.getpid()
        self._address = address
        self._store = TCPStore(*address, is_master=False)
        self._made = 0
        self._untouched = False
        self._only_offered = False
        self._kept: list[Any] = []
        self._sockets: set[OpenSocket] = set()
        self._torch_init = dist.init_process_group
        self._torch_destroy = dist.destroy_process_group

    def make(self) -> None:
        """Make the group and replace torch's functions."""
        before = _open_sockets()
        self._init({"backend": self._backend})
        self._sockets = _open_sockets() - before
        if self._store.add(_MADE, 1) == self._world_size:
            self._store.set(_ALL_MADE, "yes")
        self._untouched = True
        self._replace_functions()

    def offer(self) -> None:
        """Replace torch's functions, but make no group: the cell of another framework may still want one."""
        self._only_offered = True
        self._replace_functions()

    def renew(self, namespace: Mapping[str, Any]) -> None:
        """Make the group anew among the same ranks, after a cell that broke it; models go on in it.

        namespace: the cells' names.
        """
        if self._only_offered and not dist.is_initialized():
            return
        held = held_models(namespace)
        if dist.is_initialized():
            self.destroy_process_group()
        self.make()
        onto_new_group(held)
        divided.end_with_group(namespace)

    def _replace_functions(self) -> None:
        for module in (dist, distributed_c10d):
            vars(module).update(
                init_process_group=self.init_process_group, destroy_process_group=self.destroy_process_group
            )

    @property
    def collectives(self) -> int:
        """How many collectives this rank has begun in the group: as many as all others, or one waits."""
        if not dist.is_initialized():
            return 0
        world: Any = dist.group.WORLD
        return world._get_sequence_number_for_group()

    def close_connections(self) -> None:
        """Close the group's connections to the other ranks: those that wait for this one get an error.

        torch closes them with the group's last reference only, which a DistributedDataParallel may hold.
        """
        for descriptor, name in _open_sockets() & self._sockets:
            # Gloo may close them at the same time.
            with contextlib.suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as connection:
                listens = connection.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
                if not listens and str(Path(f"/proc/self/fd/{connection.fileno()}").readlink()) == name:
                    connection.shutdown(socket.SHUT_RDWR)

    def wait_for_all(self) -> None:
        """Wait until all ranks have the group: if a rank ended earlier, connections would break."""
        if self._only_offered:
            return
        with contextlib.suppress(RuntimeError):  # The store or a rank has ended: nothing to wait for.
            self._store.wait([_ALL_MADE], _LEAVE_WITHIN)

    def init_process_group(self, *args: Any, **kwargs: Any) -> None:
        """Replace torch.distributed.init_process_group."""
        arguments = inspect.signature(self._torch_init).bind(*args, **kwargs).arguments
        if self._untouched and os.getpid() == self._pid:
            self._untouched = False
            if self._matches_existing_group(arguments):
                return
            self.destroy_process_group()
        self._init(arguments)

    def destroy_process_group(self, group: Any = None) -> None:
        """Replace torch.distributed.destroy_process_group.

        Keep the group objects: freeing one that a DistributedDataParallel still holds can deadlock, since it
        joins a Gloo thread that waits for a lock of the joining thread.
        """
        self._kept.extend(distributed_c10d._world.pg_map)
        self._untouched = False
        self._torch_destroy(group)

    def _init(self, arguments: dict[str, Any]) -> None:
        hosted = contextlib.nullcontext()
        if self._covers_all_ranks(arguments):
            # Keys of an earlier group contain addresses that nobody listens on any more.
            fresh = PrefixStore(f"group-{self._made}", self._store)
            self._made += 1
            arguments = {**arguments, "init_method": None, "store": fresh}
            arguments.update(rank=self._rank, world_size=self._world_size)
        elif arguments.get("store") is None and _master_address(arguments) != self._address:
            hosted = _hosted_by_rank_0()
        with hosted:
            self._torch_init(**arguments)

    def _covers_all_ranks(self, arguments: dict[str, Any]) -> bool:
        """Return whether a script's group has all ranks of the job; ignore its init_method."""
        if arguments.get("store") is not None or os.getpid() != self._pid:
            return False
        address = urlsplit(arguments.get("init_method") or "env://")
        asked = dict(parse_qsl(address.query))
        wanted = [asked.get(name) or arguments.get(name, -1) for name in ("rank", "world_size")]
        same = all(int(a) in (-1, b) for a, b in zip(wanted, (self._rank, self._world_size), strict=True))
        return address.scheme == "env" or (same and address.scheme in ("tcp", "file"))

    def _matches_existing_group(self, arguments: dict[str, Any]) -> bool:
        if not self._covers_all_ranks(arguments):
            return False
        there = {
            "backend": (None, self._backend),
            "init_method": (arguments.get("init_method"),),
            "timeout": (None, distributed_c10d.default_pg_timeout),
            "world_size": (-1, self._world_size),
            "rank": (-1, self._rank),
            "group_name": ("",),
        }
        return all(value in there.get(name, (None,)) for name, value in arguments.items())


def _master_address(arguments: dict[str, Any]) -> tuple[str, int]:
    """Return the master address and port of a script's rendezvous."""
    address = urlsplit(arguments.get("init_method") or "env://")
    if address.scheme == "env":
        return os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    return address.hostname or "", address.port or 0


@contextlib.contextmanager
def _hosted_by_rank_0() -> Iterator[None]:
    """Make rank 0 of a group host the group's store, as the job has none."""
    setting = os.environ.pop(AGENT_STORE, None)
    try:
        yield
    finally:
        if setting is not None:
            os.environ[AGENT_STORE] = setting
