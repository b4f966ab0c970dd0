"""Which objects a name leads to, and where in a variable an object sits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import ModuleType
from typing import Any

from ..refusal import path_to
from .looks import Anatomy

_MOST = 2_000_000


def reached(anatomy: Anatomy, roots: Iterable[Any]) -> set[int]:
    """Return the ids of all objects that these lead to."""
    seen: dict[int, Any] = {}
    todo = list(roots)
    while todo and len(seen) < _MOST:
        obj = todo.pop()
        if id(obj) in seen or isinstance(obj, ModuleType):
            continue
        seen[id(obj)] = obj
        try:
            todo.extend(anatomy.parts(obj))
        except Exception:  # noqa: S112 - what forbids to be looked at leads nowhere
            continue
    return set(seen)


def shown_at(obj: Any, names: Mapping[str, Any]) -> str:
    """Return where an object is, as one would type it; its type when it is too far down."""
    paths = [name + path for name, value in names.items() if "…" not in (path := path_to(value, obj))]
    return min(paths, key=len) if paths else f"a {type(obj).__name__}"


def leading(anatomy: Anatomy, names: Mapping[str, Any], targets: set[int]) -> list[str]:
    """Return the names that lead to any of these ids."""
    return [name for name, value in names.items() if not targets.isdisjoint(reached(anatomy, [value]))]
