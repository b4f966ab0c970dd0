"""When two values count as one: identity for what can be changed, equality for what cannot."""

from __future__ import annotations

import operator
import sys
from collections.abc import Sequence

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
    """Tell whether a part is what it was."""
    if one is other:
        return True
    kind = type(one)
    if kind is not type(other):
        return False
    if isinstance(one, tuple) and isinstance(other, tuple):
        return same_all(one, other)
    return is_value(kind) and (bool(one == other) or bool(one != one and other != other))


def same_all(some: Sequence[object], others: Sequence[object]) -> bool:
    """Do what `same` does, one by one."""
    if len(some) != len(others):
        return False
    return all(map(operator.is_, some, others)) or all(map(same, some, others))


def is_value(kind: type) -> bool:
    """Tell whether values of a type are compared by what they say, not by which object they are."""
    if kind in ATOMS or kind is frozenset:
        return True
    if f"{kind.__module__}.{kind.__qualname__}".startswith(_VALUES):
        return True
    # A record is a part of its array's memory.
    numpy = sys.modules.get("numpy")
    return numpy is not None and issubclass(kind, numpy.generic) and not issubclass(kind, numpy.void)


def never_changes(kind: type) -> bool:
    """Tell whether an object of this type stays as it was made; parts of a tuple may change all the same."""
    return is_value(kind) or (issubclass(kind, _UNCHANGING) and kind.__dictoffset__ == 0)
