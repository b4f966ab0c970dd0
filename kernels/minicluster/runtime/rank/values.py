"""Exchanges the ranks' values at a cell's end: rank 0 finds differences, and gathers values for --gather.

Ranks use a separate connection to the attempt's store, so no process group is needed, and a rank that ended
or hangs causes only a short delay. An error here becomes a note to the result.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import timedelta
from typing import Any

from torch._C._distributed_c10d import TCPStore

from minicluster.capture.payload import CellPayload
from minicluster.changes.returning import ResultWriter, ReturnRequest
from minicluster.changes.value_digest import value_digest
from minicluster.pickling import pickling

_SHOWN = 5

# Describes differences between ranks at a cell's end.


@dataclass(frozen=True)
class Differences:
    """mine: digests of rank 0's returned values, by name. others: the same for each other rank.

    An empty digest marks a value that cannot be compared. A name that only rank 0 made or changed does not
    count as a difference, since nothing is lost: `if rank == 0:` is common.
    """

    mine: Mapping[str, str] = field(default_factory=dict)
    others: Mapping[int, Mapping[str, str]] = field(default_factory=dict)

    def sentences(self, stayed: Collection[str]) -> list[str]:
        """Describe the differences. stayed: names, or paths in them, that are not returned."""
        gone = {name.partition(".")[0].partition("[")[0] for name in stayed}
        there = [one for one in self.mine if one not in gone and self._differs(one)]
        lost = dict.fromkeys(name for of_rank in self.others.values() for name in of_rank)
        lost = [one for one in lost if one not in self.mine and one not in gone]
        sentences = []
        if there:
            verb = "differs" if len(there) == 1 else "differ"
            sentences.append(f"{_list(there)} {verb} between ranks; rank 0's came back ({_way_out(there)})")
        if lost:
            verb = "was" if len(lost) == 1 else "were"
            sentences.append(
                f"{_list(lost)} {verb} made or changed on other ranks than rank 0 only, and did not come "
                f"back ({_way_out(lost)})"
            )
        return sentences

    def _differs(self, name: str) -> bool:
        mine = self.mine[name]
        return bool(mine) and any(
            of_rank.get(name) not in (None, "", mine) for of_rank in self.others.values()
        )


def late_sentence(ranks: Sequence[int], wait_s: float, *, gathering: bool) -> str:
    """Return a sentence about the ranks that did not answer in time."""
    who = f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}"
    silent = f"{who} had not come to the cell's end {wait_s:.0f} s after rank 0"
    if not gathering:
        return f"Values were not compared with those of all ranks: {silent}."
    return f"--gather: {silent}, so None stands there. End the cell with torch.distributed.barrier()."


def _list(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(f"`{name}`" for name in names[:_SHOWN]) + more


def _way_out(names: Sequence[str]) -> str:
    return f"--gather {','.join(names) if len(names) <= _SHOWN else 'NAMES'} brings all"


_COMPARE_WAIT_S, _GATHER_WAIT_S = 3.0, 120.0
"""How long rank 0 waits for others after its own end. It must be short, since they may wait for rank 0."""
_WARN_AFTER_S, _STORE_S = 2.0, 10.0
_WAIT = timedelta(seconds=0.5)
"""For one wait at the store. It must be short, since no signal interrupts it."""
_PIECE_BYTES = 4 << 20
"""The store refuses values of more than 8 MB."""
_GATHER_BYTES = 256 << 20
"""Limit for the values of all ranks together in the store's memory."""


@dataclass(frozen=True)
class RankConnection:
    """A rank's number and its way to the others.

    store: host and port. report_waiting: if a wait is long, called with what the rank waits for.
    """

    rank: int
    size: int
    store: tuple[str, int]
    report_waiting: Callable[[str], None]


@dataclass(frozen=True)
class RankValues:
    """A rank's summary for rank 0 at its end.

    digests: digest of each value to return, by name; "" if the value has none.
    missing: gathered names that the rank cannot send, with the reason.
    sizes: size in bytes of each gathered value, in the order of sending.
    """

    digests: Mapping[str, str]
    missing: Mapping[str, str]
    sizes: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class SharedValues:
    """The values to return after the exchange, and sentences for the user."""

    request: ReturnRequest
    differences: Differences = field(default_factory=Differences)
    notes: tuple[str, ...] = ()

    def sentences(self, stayed: Collection[str]) -> Sequence[str]:
        return (*self.differences.sentences(stayed), *self.notes)


def share(
    connection: RankConnection,
    payload: CellPayload,
    back: ResultWriter,
    request: ReturnRequest,
    namespace: dict[str, Any],
) -> SharedValues:
    """Send this rank's values; on rank 0, receive the others', and replace gathered names by lists."""
    nothing = not request.names and (request.only or not payload.names)
    if not payload.gather and (nothing or connection.size == 1):
        return SharedValues(request)
    try:
        return _Sharing(connection, payload, namespace).share(back, request)
    except Exception as error:
        # Methods of users' objects may raise any error; the store may be gone.
        return SharedValues(request, notes=(f"The ranks' values could not be compared or gathered: {error}",))


class _Sharing:
    def __init__(self, connection: RankConnection, payload: CellPayload, namespace: dict[str, Any]) -> None:
        self._connection, self._gather, self._namespace = connection, payload.gather, namespace
        self._limit_bytes = min(payload.result_limit_bytes, _GATHER_BYTES) // connection.size
        self._wait_s = _GATHER_WAIT_S if payload.gather else _COMPARE_WAIT_S

    def share(self, back: ResultWriter, request: ReturnRequest) -> SharedValues:
        coming = back.coming(request)
        digests = {name: value_digest(it) or "" for name, it in coming.items() if name not in self._gather}
        pickles, missing = self._pickled()
        summary = RankValues(digests, missing, {name: len(data) for name, data in pickles.items()})
        if self._connection.rank:
            self._send(summary, b"".join(pickles.values()))
            return SharedValues(request)
        summaries = self._receive()
        late = [rank for rank in range(1, self._connection.size) if rank not in summaries]
        sentences = [late_sentence(late, self._wait_s, gathering=bool(self._gather))] if late else []
        gathered, more = self._gathered(summary, summaries)
        self._namespace.update(gathered)
        differences = Differences(digests, {rank: it.digests for rank, (it, _) in summaries.items()})
        request = replace(request, names=tuple(dict.fromkeys([*request.names, *gathered])))
        return SharedValues(request, differences, (*sentences, *more))

    def _pickled(self) -> tuple[dict[str, bytes], dict[str, str]]:
        """Pickle each gathered name; return the pickles, and the reason for each that cannot be pickled."""
        pickles: dict[str, bytes] = {}
        missing: dict[str, str] = {}
        left_bytes = self._limit_bytes
        for name in dict.fromkeys(self._gather):
            if name not in self._namespace:
                missing[name] = "the rank has no such name"
                continue
            try:
                one = {name: self._namespace[name]}
                pickles[name] = pickling.dumps(one, self._namespace, "A gathered name", left_bytes)
                left_bytes -= len(pickles[name])
            except pickling.NotPicklable as refused:
                missing[name] = "; ".join(map(str, refused.culprits))
        return pickles, missing

    # Between ranks.

    def _connect(self) -> TCPStore:
        return TCPStore(*self._connection.store, is_master=False, timeout=timedelta(seconds=_STORE_S))

    def _send(self, summary: RankValues, data: bytes) -> None:
        store, rank = self._connect(), self._connection.rank
        for place in range(0, len(data), _PIECE_BYTES):
            store.set(f"values-{rank}-{place}", data[place : place + _PIECE_BYTES])  # type: ignore[arg-type]
        text = json.dumps(asdict(summary)).encode()
        for place in range(0, len(text), _PIECE_BYTES):
            store.set(f"values-{rank}-summary-{place}", text[place : place + _PIECE_BYTES])  # type: ignore[arg-type]
        store.set(f"values-{rank}", str(len(text)))

    def _receive(self) -> dict[int, tuple[RankValues, bytes]]:
        """Return the summary and the value bytes of each other rank that answers in time."""
        if self._connection.size == 1:
            return {}
        store, began, warned = self._connect(), time.monotonic(), False
        silent = {rank: f"values-{rank}" for rank in range(1, self._connection.size)}
        received: dict[int, tuple[RankValues, bytes]] = {}
        while True:
            with suppress(RuntimeError):  # Not all of them are there yet.
                store.wait([*silent.values()], _WAIT)
            for rank in [rank for rank, key in silent.items() if store.check([key])]:
                received[rank] = _read(store, rank)
                del silent[rank]
            waited_s = time.monotonic() - began
            if not silent or waited_s > self._wait_s:
                return dict(sorted(received.items()))
            if waited_s > _WARN_AFTER_S and not warned:
                warned = True
                self._connection.report_waiting(f"the values of rank {min(silent)}")

    # On rank 0.

    def _gathered(
        self, mine: RankValues, summaries: Mapping[int, tuple[RankValues, bytes]]
    ) -> tuple[dict[str, list[Any]], list[str]]:
        """Return a list for each name that any rank has, and a sentence for each value that is missing."""
        values: dict[str, list[Any]] = {name: [None] * self._connection.size for name in self._gather}
        missing = {0: dict(mine.missing)}
        for name in mine.sizes:
            values[name][0] = self._namespace[name]
        for rank, (summary, data) in summaries.items():
            missing[rank] = dict(summary.missing)
            start = 0
            for name, size in summary.sizes.items():
                try:
                    piece = data[start : start + size]
                    values[name][rank] = pickling.loads(piece, self._namespace, False)[name]
                except Exception as error:  # Unpickling may run any code of the cell.
                    missing[rank][name] = f"it cannot be opened on rank 0: {type(error).__name__}: {error}"
                start += size
        nobody = [name for name in values if all(name in of_rank for of_rank in missing.values())]
        sentences = [
            f"--gather: rank {rank}'s `{name}` is missing, None stands in its place: {reason}"
            for rank, reasons in missing.items()
            for name, reason in reasons.items()
            if name not in nobody
        ]
        sentences += [f"--gather: no rank gives `{name}`: {missing[0][name]}" for name in nobody]
        return {name: them for name, them in values.items() if name not in nobody}, sentences


def _read(store: TCPStore, rank: int) -> tuple[RankValues, bytes]:
    text = _pieces(store, f"values-{rank}-summary", int(store.get(f"values-{rank}")))
    summary = RankValues(**json.loads(text))
    return summary, _pieces(store, f"values-{rank}", sum(summary.sizes.values()))


def _pieces(store: TCPStore, key: str, size: int) -> bytes:
    data = bytearray()
    for place in range(0, size, _PIECE_BYTES):
        data += store.get(f"{key}-{place}")
        with suppress(RuntimeError):  # This only frees memory.
            store.delete_key(f"{key}-{place}")
    return bytes(data)
