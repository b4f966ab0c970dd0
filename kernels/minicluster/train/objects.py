"""mc.comm: passes Python objects between ranks, as mpi4py's lower-case functions do, through the job's store.

The store is one process of the job, so all objects go through one machine: this is for what a program tells
its parts, up to some megabytes. Tensors go faster by torch.distributed, JAX's arrays by JAX.
"""

from __future__ import annotations

import functools
import operator
import os
import pickle
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from minicluster.errors import MiniclusterError
from minicluster.train import place
from minicluster.train.calls import called_as
from minicluster.train.live.settings import LIGHTHOUSE

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

CELL = "MINICLUSTER_CELL"
"""The variable with the number of a session's cell: in each cell, ranks begin to count anew."""
MOST_BYTES = 64 << 20
"""The largest pickled object. The store holds it in memory until it was received."""
_PIECE_BYTES = 4 << 20
"""The store refuses values of more than 8 MB."""
_WAIT = timedelta(seconds=0.5)
"""For one wait at the store. It must be short, since no signal interrupts it."""
_CALL = timedelta(seconds=60)

Operation = Callable[[Any, Any], Any]


class ObjectNotSent(MiniclusterError):
    """An object cannot go to another rank: it is too large, or there is no such rank."""


class Comm:
    """The ranks of this job. rank: this process's number. size: how many there are.

    All ranks call the same collective functions (all but send and recv) in the same order.
    """

    def __init__(self, rank: int, size: int, store: Store, scope: str) -> None:
        self.rank = rank
        self.size = size
        self._store = store
        self._scope = f"minicluster-objects-{scope}"
        self._messages: Counter[tuple[str, str]] = Counter()
        self._round = 0

    def send(self, obj: Any, dest: int, tag: int = 0) -> None:
        """Send an object to a rank. It does not wait until the other rank receives it."""
        self._put(self._message("sent", self.rank, self._known(dest), tag), obj)

    def recv(self, source: int, tag: int = 0) -> Any:
        """Return the next object that a rank has sent to this one with the same tag; wait for it."""
        return self._take(self._message("received", self._known(source), self.rank, tag), readers=1)

    def bcast(self, obj: Any = None, root: int = 0) -> Any:
        """Return on all ranks the object of rank `root`; what the others give is ignored."""
        key = self._next(root)
        if self.rank != root:
            return self._take(key, readers=self.size - 1)
        if self.size > 1:
            self._put(key, obj)
        return obj

    def scatter(self, objs: Sequence[Any] | None = None, root: int = 0) -> Any:
        """Return on each rank its item of the list that rank `root` gives, which has one for each rank."""
        key = self._next(root)
        if self.rank != root:
            return self._take(f"{key}-to-{self.rank}", readers=1)
        if objs is None or len(objs) != self.size:
            have = "None" if objs is None else str(len(objs))
            raise ObjectNotSent(
                f"scatter() takes a list of {self.size} objects on rank {root}, one for each rank, not "
                f"{have}."
            )
        for rank, obj in enumerate(objs):
            if rank != root:
                self._put(f"{key}-to-{rank}", obj)
        return objs[root]

    def gather(self, obj: Any, root: int = 0) -> list[Any] | None:
        """Return on rank `root` the objects of all ranks, in their order; None on the others."""
        key = self._next(root)
        if self.rank != root:
            self._put(f"{key}-from-{self.rank}", obj)
            return None
        return [
            obj if rank == root else self._take(f"{key}-from-{rank}", readers=1) for rank in range(self.size)
        ]

    def allgather(self, obj: Any) -> list[Any]:
        """Return on all ranks the objects of all ranks, in their order."""
        return self.bcast(self.gather(obj))

    def reduce(self, obj: Any, op: Operation = operator.add, root: int = 0) -> Any:
        """Return on rank `root` the objects of all ranks, combined two by two in their order; else None."""
        gathered = self.gather(obj, root)
        return None if gathered is None else functools.reduce(op, gathered)

    def allreduce(self, obj: Any, op: Operation = operator.add) -> Any:
        """Return on all ranks the objects of all ranks, combined two by two in their order."""
        return self.bcast(self.reduce(obj, op))

    def barrier(self) -> None:
        """Wait until all ranks have called it."""
        self.allgather(None)

    # Through the store.

    def _known(self, rank: int) -> int:
        if not 0 <= rank < self.size:
            raise ObjectNotSent(f"There is no rank {rank}: this job has the ranks 0 to {self.size - 1}.")
        return rank

    def _next(self, root: int) -> str:
        self._known(root)
        self._round += 1
        return f"{self._scope}-round-{self._round}"

    def _message(self, what: str, source: int, dest: int, tag: int) -> str:
        """Return the key of the next message on a way, which this rank has sent or received."""
        way = f"{source}-{dest}-{tag}"
        self._messages[what, way] += 1
        return f"{self._scope}-{way}-{self._messages[what, way]}"

    def _put(self, key: str, obj: Any) -> None:
        data = _pickled(obj)
        if len(data) > MOST_BYTES:
            raise ObjectNotSent(
                f"An object of {len(data) / 1e6:.0f} MB is too large for mc.comm(), which takes "
                f"{MOST_BYTES / 1e6:.0f} MB.",
                "Tensors go by torch.distributed; files go into mc.output() or a data set.",
            )
        for at in range(0, len(data), _PIECE_BYTES):
            self._store.set(f"{key}-{at}", data[at : at + _PIECE_BYTES])  # type: ignore[arg-type]
        self._store.set(key, str(len(data)))

    def _take(self, key: str, readers: int) -> Any:
        """Return an object once it is there. The last of its readers removes it from the store."""
        self._wait(key)
        size = int(self._store.get(key))
        pieces = [f"{key}-{at}" for at in range(0, size, _PIECE_BYTES)]
        data = b"".join(self._store.get(piece) for piece in pieces)
        read = f"{key}-read"
        if readers == 1 or self._store.add(read, 1) == readers:
            for used in (*pieces, key, *([read] if readers > 1 else [])):
                self._store.delete_key(used)
        return pickle.loads(data)  # noqa: S301 - from a rank of the same job

    def _wait(self, key: str) -> None:
        from torch.distributed import DistStoreError

        while True:
            try:
                self._store.wait([key], _WAIT)
                return
            except DistStoreError:  # Not yet: between two waits, an interrupt is noticed.
                continue


def _pickled(obj: Any) -> bytes:
    """Pickle an object. Classes of the cell are there on all ranks, and travel by name if possible."""
    try:
        return pickle.dumps(obj, protocol=5)
    except (pickle.PicklingError, AttributeError, TypeError):
        import cloudpickle

        return cloudpickle.dumps(obj, protocol=5)


@called_as("comm = mc.comm()")
def comm() -> Comm:
    """Return what passes Python objects between this job's ranks: `total = mc.comm().allreduce(part)`.

    It has rank and size, and send, recv, bcast, scatter, gather, allgather, reduce, allreduce and barrier,
    as mpi4py. An object may have 64 MB when pickled. Outside of a job there is one rank.
    Raises ObjectNotSent.
    """
    if os.environ.get(LIGHTHOUSE):
        raise ObjectNotSent(
            "mc.comm() needs ranks that stay; those of a fault-tolerant job come and go.",
            "Leave --fault-tolerant out.",
        )
    return _of_cell(os.environ.get(CELL, "0"))


@functools.cache
def _of_cell(number: str) -> Comm:
    size = place.world_size()
    return Comm(place.rank(), size, _store(size), number)


@functools.cache
def _store(size: int) -> Store:
    """Return the job's store: one connection for all cells of a session. A single rank has its own."""
    from torch._C._distributed_c10d import HashStore, TCPStore

    if size == 1:
        return HashStore()
    address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    return TCPStore(*address, is_master=False, timeout=_CALL)
