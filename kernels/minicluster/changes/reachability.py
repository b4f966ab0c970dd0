"""Which objects can be reached from a name, and where in a variable an object is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import ModuleType
from typing import Any

from minicluster.changes.aspects import attributes_of
from minicluster.changes.inspection import Anatomy
from minicluster.pickling.refusal import path_to

_MOST = 2_000_000
_SHOWN = 5


def reached(anatomy: Anatomy, roots: Iterable[Any]) -> set[int]:
    """Return the ids of all objects that can be reached from these."""
    seen: dict[int, Any] = {}
    todo = list(roots)
    while todo and len(seen) < _MOST:
        obj = todo.pop()
        if id(obj) in seen or isinstance(obj, ModuleType):
            continue
        seen[id(obj)] = obj
        try:
            todo.extend(anatomy.parts(obj))
        except Exception:
            # Some objects forbid reading, such as parametrized modules; their attributes are still theirs.
            todo.extend(attributes_of(obj).values())
    return set(seen)


def shown_at(obj: Any, names: Mapping[str, Any]) -> str:
    """Return where an object is, as typed in Python; its type if it is too deep."""
    paths = [name + path for name, value in names.items() if "…" not in (path := path_to(value, obj))]
    return min(paths, key=len) if paths else f"a {type(obj).__name__}"


def leading(anatomy: Anatomy, names: Mapping[str, Any], targets: set[int]) -> list[str]:
    """Return the names that lead to any of these ids."""
    return [name for name, value in names.items() if not targets.isdisjoint(reached(anatomy, [value]))]


def listed(names: Sequence[str]) -> str:
    """Return names as a list for a sentence."""
    shown = ", ".join(f"`{name}`" for name in names[:_SHOWN])
    return f"{shown} and {len(names) - _SHOWN} more" if len(names) > _SHOWN else shown
