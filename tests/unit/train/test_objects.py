"""mc.comm: what ranks pass to each other, here threads with one store."""

from __future__ import annotations

import operator
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from torch.distributed import HashStore

import minicluster as mc
from minicluster.train.objects import MOST_BYTES, Comm, ObjectNotSent

SIZE = 3


class CountedStore(HashStore):
    """A store that knows how many keys it has."""

    @property
    def keys(self) -> int:
        return self.num_keys()


def on_all(work: Callable[[Comm], Any]) -> tuple[list[Any], CountedStore]:
    """Run the same on three ranks; return their results, and the store that they used."""
    store = CountedStore()
    with ThreadPoolExecutor(SIZE) as pool:
        ranks = [pool.submit(work, Comm(rank, SIZE, store, "0")) for rank in range(SIZE)]
        return [one.result(30) for one in ranks], store


def everything(comm: Comm) -> list[Any]:
    given = comm.bcast({"a": 1} if comm.rank == 1 else None, root=1)
    part = comm.scatter(["x", "y", "z"] if comm.rank == 0 else None)
    gathered = comm.gather(part * 2, root=2)
    total = comm.allreduce(comm.rank + 1)
    product = comm.reduce(comm.rank + 2, operator.mul)
    comm.barrier()
    return [given, part, gathered, comm.allgather(comm.rank), total, product]


def test_collectives_give_what_mpi4py_gives() -> None:
    results, store = on_all(everything)
    assert [result[0] for result in results] == [{"a": 1}] * 3
    assert [result[1] for result in results] == ["x", "y", "z"]
    assert [result[2] for result in results] == [None, None, ["xx", "yy", "zz"]]
    assert [result[3] for result in results] == [[0, 1, 2]] * 3
    assert [result[4] for result in results] == [6] * 3
    assert [result[5] for result in results] == [24, None, None]
    assert store.keys == 0, "what was received is no longer in memory"


def ring(comm: Comm) -> list[Any]:
    to, of = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    comm.send(("first", comm.rank), to)
    comm.send(("other tag", comm.rank), to, tag=7)
    comm.send(bytes(9_000_000), to)
    return [comm.recv(of, tag=7), comm.recv(of), len(comm.recv(of))]


def test_messages_come_in_order_and_by_their_tags() -> None:
    results, _ = on_all(ring)
    assert results[1] == [("other tag", 0), ("first", 0), 9_000_000]


def test_a_rank_may_send_to_itself_and_alone_it_is_all_ranks() -> None:
    comm = mc.comm()
    assert (comm.rank, comm.size) == (0, 1)
    comm.send([1], dest=0)
    assert comm.recv(source=0) == [1]
    assert (comm.bcast(2), comm.allgather(3), comm.allreduce(4), comm.scatter([5])) == (2, [3], 4, 5)


def test_functions_without_a_name_travel_too() -> None:
    results, _ = on_all(lambda comm: comm.bcast((lambda x: x + 1) if comm.rank == 0 else None)(1))
    assert results == [2, 2, 2]


def test_what_cannot_be_sent_is_refused_with_what_to_do() -> None:
    comm = Comm(0, SIZE, HashStore(), "0")
    with pytest.raises(ObjectNotSent, match="There is no rank 3: this job has the ranks 0 to 2"):
        comm.send(1, dest=3)
    with pytest.raises(ObjectNotSent, match="too large") as caught:
        comm.send(bytes(MOST_BYTES + 1), dest=1)
    assert "torch.distributed" in caught.value.hint
    with pytest.raises(ObjectNotSent, match="a list of 3 objects on rank 0, one for each rank, not 2"):
        comm.scatter([1, 2])


def test_ranks_that_come_and_go_have_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINICLUSTER_LIGHTHOUSE", "here:1")
    with pytest.raises(ObjectNotSent, match="ranks that stay"):
        mc.comm()


def test_each_cell_of_a_session_counts_anew_over_the_same_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    first = mc.comm()
    first.send("left by a cell that was interrupted", dest=0)
    monkeypatch.setenv("MINICLUSTER_CELL", "7")
    second = mc.comm()
    second.send("of this cell", dest=0)
    assert second.recv(source=0) == "of this cell"
    assert second._store is first._store
