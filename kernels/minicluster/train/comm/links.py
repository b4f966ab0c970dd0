"""How fast two nodes exchange data: measured between the first ranks of each two nodes, pair after pair."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

_BYTES = 2 << 20
_TRIES = 3
"""The fastest counts: a connection that was idle begins slowly."""


@dataclass(frozen=True)
class Link:
    """Two ranks on different nodes, and how fast a flow between them is: in Gbit/s, the slower way."""

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


def flow_s(group: Any, peer: int, *, sends: bool) -> float:
    """Return how long it takes to send _BYTES to a rank of the group, or to get them from it."""
    flow = torch.empty(_BYTES, dtype=torch.uint8)
    began = time.perf_counter()
    if sends:
        dist.send(flow, group=group, group_dst=peer)
        dist.recv(flow[:1], group=group, group_src=peer)  # All has arrived.
    else:
        dist.recv(flow, group=group, group_src=peer)
        dist.send(flow[:1], group=group, group_dst=peer)
    return time.perf_counter() - began


def _both_ways(group: Any, peer: int, is_first: bool) -> tuple[float, float]:
    """Return the times of a flow from the first of two ranks to the second, and of one back."""
    return flow_s(group, peer, sends=is_first), flow_s(group, peer, sends=not is_first)


def own_links(group: Any, leaders: Sequence[int]) -> list[Link]:
    """Measure this rank's links to other nodes. leaders: one rank of each node; all ranks call this."""
    links: list[Link] = []
    me = group.rank()
    for pairs in rounds(len(leaders)):
        for first, second in ((leaders[a], leaders[b]) for a, b in pairs):
            if me in (first, second):
                peer = second if me == first else first
                to_peer, from_peer = zip(
                    *(_both_ways(group, peer, me == first) for _ in range(_TRIES)), strict=True
                )
                took = max(min(to_peer), min(from_peer))
                links.append(Link(first, second, _BYTES * 8 / took / 1e9))
    return links
