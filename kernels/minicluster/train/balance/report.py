"""What a person sees of the shares: a table under the cell, and readings of the run."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

from minicluster.train.balance.shares import Shares
from minicluster.train.metrics import sending

_NEWS = 0.1
"""A table is printed again if a rank's share differs by this part from the last one."""


class Report:
    """Tells rank 0's output about shares that were found, and about those that differ considerably."""

    def __init__(self) -> None:
        self._told: tuple[int, ...] = ()

    def found(self, shares: Shares, step: int, *, changed: bool) -> None:
        """Report the newest shares. step: the number of batches so far."""
        if changed or not self._told:
            values = {f"share/rank-{rank}": float(share) for rank, share in enumerate(shares.newest)}
            sending.write((sending.own_rank(), time.time(), float(step), values))
        if not self._told or differ(self._told, shares.newest):
            self._told = shares.newest
            print(f"--balance: {table(shares)}", file=sys.stderr, flush=True)  # noqa: T201


def differ(before: Sequence[int], now: Sequence[int]) -> bool:
    """Return whether shares differ so much that a person wants to know."""
    return any(abs(new - old) > _NEWS * old for old, new in zip(before, now, strict=True))


def table(shares: Shares) -> str:
    """Return the newest shares as text, a line for each rank."""
    newest = shares.newest
    if max(newest) - min(newest) <= 1:
        return f"the ranks are about equally fast. Each takes {newest[0]} of a step's {shares.total} samples."
    lines = [
        f"a step's {shares.total} samples are divided by measured speed.",
        f"  {'rank':>4}  {'samples/s':>9}  {'samples':>7}  {'share':>6}",
    ]
    for rank, (share, sample_s) in enumerate(zip(newest, shares.sample_s, strict=True)):
        lines.append(f"  {rank:4}  {1 / sample_s:9.4g}  {share:7}  {share / shares.total:6.1%}")
    return "\n".join(lines)
