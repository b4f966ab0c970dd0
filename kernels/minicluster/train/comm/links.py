"""How fast two nodes exchange data: measured between the first ranks of each two nodes, pair after pair."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

_BYTES = 2 << 20


@dataclass(frozen=True)
class Link:
    """Two ranks on different nodes, and what they send each other at the same time, in Gbit/s each way."""

    first: int
    second: int
    gbit_s: float


def rounds(count: int) -> Iterator[list[tuple[int, int]]]:
    """Yield rounds of pairs: each of `count` meets each other one once, and none twice in a round."""
    table: list[int | None] = [*range(count)]
    if count % 2:
        table.append(None)
    size = len(table)
    for _ in range(size - 1):
        halves = zip(table[: size // 2], reversed(table[size // 2 :]), strict=True)
        yield [(min(a, b), max(a, b)) for a, b in halves if a is not None and b is not None]
        table[1:] = [table[-1], *table[1:-1]]


def exchange_s(group: Any, peer: int, sent_bytes: int = _BYTES) -> float:
    """Return how long it takes to send so many bytes to a rank of the group, and to get as many from it."""
    data, room = torch.empty(sent_bytes, dtype=torch.uint8), torch.empty(sent_bytes, dtype=torch.uint8)
    _exchange(group, peer, data[:1], room[:1])  # Both begin at the same time.
    began = time.perf_counter()
    _exchange(group, peer, data, room)
    return time.perf_counter() - began


def _exchange(group: Any, peer: int, data: torch.Tensor, room: torch.Tensor) -> None:
    waits: Any = dist.isend(data, group=group, group_dst=peer), dist.irecv(room, group=group, group_src=peer)
    for wait in waits:
        wait.wait()


def own_links(group: Any, leaders: Sequence[int]) -> list[Link]:
    """Measure this rank's links to other nodes. leaders: one rank of each node; all ranks call this."""
    links: list[Link] = []
    me = group.rank()
    for pairs in rounds(len(leaders)):
        for first, second in ((leaders[a], leaders[b]) for a, b in pairs):
            if me in (first, second):
                took = exchange_s(group, second if me == first else first)
                links.append(Link(first, second, _BYTES * 8 / took / 1e9))
    return links
