"""Which jobs make planning raise: found by leaving jobs out, the newest suspected first. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

MOST = 100
"""If so many were at fault, it would rather be the planning itself."""
_Job = TypeVar("_Job")
_Raises = Callable[[Sequence[_Job]], bool]


def at_fault(jobs: Sequence[_Job], plain: _Job, raises: _Raises[_Job]) -> tuple[_Job, ...]:
    """Return the jobs without which `raises` is false; none if it is not because of them.

    plain: a job that cannot be to blame.
    """
    found: list[_Job] = []
    if raises([plain]):
        return ()
    left = list(jobs)
    while raises(left):
        if not left or len(found) == MOST:
            return ()
        found.append(left.pop(_last_of_shortest(left, raises)))
    return tuple(found)


def _last_of_shortest(jobs: Sequence[_Job], raises: _Raises[_Job]) -> int:
    """Return the index of the last one of the fewest jobs, from the first on, that raise together."""
    low, high = 1, len(jobs)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if raises(jobs[:middle]) else (middle + 1, high)
    return low - 1
