"""How many samples of a step each rank takes. Pure: all ranks decide alike, from the same measured times."""

from __future__ import annotations

import heapq
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

LEAST_GAIN = 0.97
"""New shares have to bring the slowest rank's time of a step below this part of what it is expected to be."""
_NEWEST = 0.5
"""Weight of the newest times in the smoothed ones."""


@dataclass(frozen=True)
class Measured:
    """What a rank has measured.

    sample_s: seconds that it computes for a sample; 0 if it does not know. drawn: number of batches of this
    pass that its loader has drawn: their shares are fixed. most: samples that its memory holds.
    """

    sample_s: float
    drawn: int
    most: float


@dataclass(frozen=True)
class Portion:
    """What a rank takes of a batch. samples: positions in it. part: weight of its mean in the mean of all."""

    samples: range
    part: float


class Shares:
    """Which shares hold for which batch of a pass, and which ones the measured times ask for.

    total: samples in a whole batch of all ranks. sample_s: smoothed seconds for a sample, of each rank.
    """

    def __init__(self, total: int, ranks: int) -> None:
        self.total = total
        self.sample_s: tuple[float, ...] = ()
        self._equal = divided(total, [1.0] * ranks)
        self._changes = [(0, self._equal)]

    @property
    def newest(self) -> tuple[int, ...]:
        return self._changes[-1][1]

    @property
    def digest(self) -> int:
        """Return a number that is the same on ranks that know the same."""
        return zlib.crc32(repr((self.newest, self.sample_s)).encode())

    def begin_anew(self) -> None:
        """Forget the times, which an interrupt may have kept from some ranks."""
        self.sample_s = ()
        self._changes = [(0, self._equal)]

    def begin_pass(self) -> None:
        """Number the batches from 0 again."""
        self._changes = [(0, self.newest)]

    def portion(self, batch: int, size: int, rank: int) -> Portion:
        """Return what a rank takes of a batch with `size` samples."""
        shares = next(shares for first, shares in reversed(self._changes) if first <= batch)
        if size != self.total:
            # The last batch. One with fewer samples than ranks gives some samples to several ranks.
            if size < len(shares):
                alike = len(range(rank % size, len(shares), size))
                return Portion(range(rank % size, rank % size + 1), 1 / (size * alike))
            shares = divided(size, [1 / share for share in shares])
        end = [*accumulate(shares)][rank]
        return Portion(range(end - shares[rank], end), shares[rank] / size)

    def learn(self, measured: Sequence[Measured]) -> bool:
        """Take in what all ranks measured; return whether the shares change."""
        # No rank's loader has drawn this batch yet.
        first = max(one.drawn for one in measured)
        if not all(one.sample_s for one in measured):
            return False
        found = [one.sample_s for one in measured]
        before = self.sample_s or found
        self.sample_s = tuple(
            _NEWEST * new + (1 - _NEWEST) * old for new, old in zip(found, before, strict=True)
        )
        better = divided(self.total, self.sample_s, [one.most for one in measured])
        if self.step_s(better) >= LEAST_GAIN * self.step_s(self.newest):
            return False
        self._changes.append((first, better))
        return True

    def step_s(self, shares: Sequence[int]) -> float:
        """Return how long the slowest rank computes for a step."""
        return max(share * seconds for share, seconds in zip(shares, self.sample_s, strict=True))


def divided(total: int, sample_s: Sequence[float], most: Sequence[float] = ()) -> tuple[int, ...]:
    """Divide samples so that the slowest rank ends as early as possible; each rank gets at least one.

    most: what the ranks can take; together they can take all.
    """
    shares = [1] * len(sample_s)
    ends = [(2 * seconds, rank) for rank, seconds in enumerate(sample_s)]
    heapq.heapify(ends)
    for _ in range(total - len(shares)):
        while most and shares[ends[0][1]] >= most[ends[0][1]] and len(ends) > 1:
            heapq.heappop(ends)
        rank = ends[0][1]
        shares[rank] += 1
        heapq.heapreplace(ends, ((shares[rank] + 1) * sample_s[rank], rank))
    return tuple(shares)
