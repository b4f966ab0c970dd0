"""When two values count as the same: by identity if they are mutable, by equality if they are immutable."""

from __future__ import annotations

import operator
import sys
from collections.abc import Sequence

from minicluster.pickling.jax_arrays import is_jax_array

ATOMS = frozenset({int, float, complex, bool, str, bytes, type(None), type(...), type(NotImplemented), range})
"""Types whose values have no parts and never change."""
_VALUES = (
    "datetime.",
    "decimal.",
    "fractions.",
    "pathlib.",
    "uuid.",
    "zoneinfo.",
    "torch.device",
    "torch.dtype",
)
_UNCHANGING = (tuple, frozenset, str, bytes, int, float, complex)


def same(one: object, other: object) -> bool:
    """Whether two values count as the same."""
    if one is other:
        return True
    kind = type(one)
    if kind is not type(other):
        return False
    if isinstance(one, tuple) and isinstance(other, tuple):
        return same_all(one, other)
    return is_value(kind) and (bool(one == other) or bool(one != one and other != other))


def same_all(some: Sequence[object], others: Sequence[object]) -> bool:
    """Whether two sequences have the same values, one by one."""
    if len(some) != len(others):
        return False
    return all(map(operator.is_, some, others)) or all(map(same, some, others))


def is_value(kind: type) -> bool:
    """Whether values of a type are compared by equality, not by identity."""
    if kind in ATOMS or kind is frozenset:
        return True
    if f"{kind.__module__}.{kind.__qualname__}".startswith(_VALUES):
        return True
    # Not numpy.void: a record is a part of its array's memory.
    numpy = sys.modules.get("numpy")
    return numpy is not None and issubclass(kind, numpy.generic) and not issubclass(kind, numpy.void)


def never_changes(kind: type) -> bool:
    """Whether objects of this type are immutable. The items of a tuple may still change."""
    if is_value(kind) or is_jax_array(kind):
        return True
    return issubclass(kind, _UNCHANGING) and kind.__dictoffset__ == 0
