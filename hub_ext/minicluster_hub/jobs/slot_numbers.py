"""Numbers of slots, and of their halves: a GPU may be divided between two jobs or notebook servers.

A node's slots have the numbers 0, 1, ... Each half of a slot has a number of its own, from FIRST_HALF on. So
a place, a task or a lease names whole slots or halves, and the two halves of a slot differ.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

HALF = 0.5
FIRST_HALF = 1000
"""No node has so many slots."""


def halves(slot: int) -> tuple[int, int]:
    """Return the numbers of a slot's halves."""
    first = FIRST_HALF + 2 * slot
    return first, first + 1


def is_half(number: int) -> bool:
    return number >= FIRST_HALF


def other_half(half: int) -> int:
    return half ^ 1


def slot_of(number: int) -> int:
    """Return the slot that a number stands for, or of which it is a half."""
    return (number - FIRST_HALF) // 2 if number >= FIRST_HALF else number


def size(number: int) -> float:
    """Return how much of a slot a number stands for."""
    return HALF if number >= FIRST_HALF else 1


def total(numbers: Iterable[int]) -> float:
    """Return how many slots these are; two halves count as one."""
    return sum(map(size, numbers))


def in_halves(numbers: Iterable[int]) -> Iterator[int]:
    """Yield the halves; a whole slot has two."""
    for number in numbers:
        if number >= FIRST_HALF:
            yield number
        else:
            yield from halves(number)


def overlap(some: Sequence[int], others: Sequence[int]) -> bool:
    """Whether a slot, or a half of one, is in both."""
    if not set(some).isdisjoint(others):
        return True
    divided = any(map(is_half, (*some, *others)))
    return divided and not set(in_halves(some)).isdisjoint(in_halves(others))
