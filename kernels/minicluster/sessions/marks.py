"""Marks of values: a value that was changed in place since it was sent has another mark."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

MOST_PARTS = 10_000
"""Of a value with more parts than this, only the identity is known."""
_PLAIN = (type(None), bool, int, float, complex, str, bytes)
_HASHED_BYTES = 1 << 20

Mark = tuple[Any, ...]


def mark_of(value: Any) -> Mark:
    """Return a value's mark: compare it with == to a later one.

    Marks see changes within numbers, text, lists, tuples, dictionaries, sets, arrays of at most 1 MB, tensors
    and modules of torch. Of all other objects they know only which object it is.
    """
    budget = [MOST_PARTS]
    try:
        mark = _mark(value, budget)
    except RecursionError:  # A value that holds itself.
        return _identity(value)
    return mark if budget[0] >= 0 else _identity(value)


def _mark(value: Any, budget: list[int]) -> Mark:
    budget[0] -= 1
    if budget[0] < 0:
        return ()
    kind = type(value)
    if kind in _PLAIN:
        return kind, value
    if kind in (list, tuple):
        return kind, id(value), *_marks(value, budget)
    if kind is dict:
        return kind, id(value), *_marks(value.keys(), budget), *_marks(value.values(), budget)
    if kind in (set, frozenset):
        return kind, id(value), frozenset(_mark(one, budget) for one in value)
    return _identity(value) + _within(value, budget)


def _marks(values: Iterable[Any], budget: list[int]) -> Iterable[Mark]:
    return [_mark(one, budget) for one in values] if budget[0] >= 0 else []


def _within(value: Any, budget: list[int]) -> Mark:
    """Return what tells of changes within arrays, tensors and modules."""
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if numpy is not None and isinstance(value, numpy.ndarray):
        small = value.nbytes <= _HASHED_BYTES and value.dtype != object
        return (value.shape, hash(value.tobytes())) if small else ()
    if torch is not None and isinstance(value, torch.Tensor):
        # torch counts the changes of each tensor; those made in inference mode are not counted.
        return () if value.is_inference() else (value._version, value.data_ptr())
    if torch is not None and isinstance(value, torch.nn.Module):
        tensors = (*value.parameters(), *value.buffers())
        return tuple(_marks(tensors, budget))
    return ()


def _identity(value: Any) -> Mark:
    return type(value), id(value)
