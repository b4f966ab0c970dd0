"""Which samples of an epoch a rank takes in its next step, for any number of ranks: pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Take:
    """samples: what this rank takes; all: how many the ranks together take off the epoch."""

    samples: tuple[int, ...]
    all: int


def next_take(
    order: Sequence[int], consumed: int, place: int, count: int, batch: int, drop_last: bool
) -> Take | None:
    """Return this rank's part of the next step, None at the epoch's end.

    Each sample is taken once. In the last step the rest is divided evenly; where it does not go
    up, some samples of the epoch's beginning fill it, at most count - 1, since all ranks weigh the same.
    """
    left = len(order) - consumed
    if left <= 0 or (drop_last and left < count * batch):
        return None
    each = min(batch, -(-left // count))
    first = consumed + place * each
    samples = tuple(order[index % len(order)] for index in range(first, first + each))
    return Take(samples, min(left, each * count))
