"""Objects that are known only by what they say of themselves: `__getstate__`, `__reduce_ex__`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from minicluster.changes.arrays import memory_of
from minicluster.changes.aspects import Aspect, Look, Moved, Undo
from minicluster.changes.attributes import attributes_of
from minicluster.changes.digest import digest
from minicluster.changes.sameness import same_all

_LONG = 1000
_DEEP = 50


class Unchangeable(Exception):
    """The object's state was read and can be put into no object that is there already."""


class Reduced(Aspect):
    """Of an object with a `__reduce__` of its own: generators of random numbers, partial, BytesIO."""

    code = "reduced"

    def look(self, obj: Any) -> Look:
        made, args, state, items, pairs = _reduction(obj)
        parts: list[Any] = []
        made_of = freeze((made, args), parts)
        # What only lists its attributes says nothing that its attributes do not.
        told = () if are_attributes(state, attributes_of(obj)) else (state, items, pairs)
        facts = (made_of, len(parts), freeze(told, parts), hasattr(obj, "__setstate__"))
        return Look(facts, parts)

    def fits(self, before: Look, now: Look) -> bool:
        """Tell whether it is still made of the same, and takes the rest as a state."""
        made_of, count, _, settable = now.facts
        alike = before.facts[:2] == (made_of, count) and same_all(before.parts[:count], now.parts[:count])
        return alike and settable

    def state(self, obj: Any, before: Look, now: Look, moved: Moved) -> Any:
        return _reduction(obj)[2]

    def refuses(self, obj: Any, state: Any) -> str:
        # A dict's iterator is a list's on the rank.
        return "" if hasattr(obj, "__setstate__") else "cannot be changed here"

    def put(self, obj: Any, state: Any) -> Undo:
        old = _reduction(obj)[2]
        obj.__setstate__(state)
        return lambda: obj.__setstate__(old)


def _reduction(obj: Any) -> tuple[Any, Any, Any, list[Any], list[Any]]:
    reduced = obj.__reduce_ex__(5)
    if isinstance(reduced, str):
        return reduced, (), None, [], []
    made, args, state, items, pairs = (*reduced, None, None, None)[:5]
    return made, args, state, list(items or ()), list(pairs or ())


def are_attributes(state: Any, have: Mapping[str, Any]) -> bool:
    """Tell whether a state is no more than some of an object's attributes."""
    return isinstance(state, dict) and all(name in have and have[name] is it for name, it in state.items())


class Encoded(Aspect):
    """Of an object whose `__getstate__` makes something else of its attributes."""

    code = "encoded"

    def look(self, obj: Any) -> Look:
        parts: list[Any] = []
        return Look(freeze(obj.__getstate__(), parts), parts)

    def state(self, obj: Any, before: Look, now: Look, moved: Moved) -> Any:
        return obj.__getstate__()

    def put(self, obj: Any, state: Any) -> Undo:
        old = obj.__getstate__()
        _restore(obj, state)
        return lambda: _restore(obj, old)


def _restore(obj: Any, state: Any) -> None:
    """Do what unpickling does. A pair is what the `__dict__` and what the slots hold."""
    if hasattr(obj, "__setstate__"):
        obj.__setstate__(state)
        return
    fields, slots = state if isinstance(state, tuple) else (state, None)
    if fields:
        vars(obj).update(fields)
    for name, value in (slots or {}).items():
        object.__setattr__(obj, name, value)


def freeze(value: Any, parts: list[Any], depth: int = 0) -> Any:
    """Return the shape of what may be made anew at each look; its leaves go to `parts`."""
    kind = type(value)
    if kind in (bytes, bytearray) and len(value) > _LONG:
        return kind, len(value), digest(value)
    if kind in (tuple, list) and depth < _DEEP:
        return kind, tuple(freeze(item, parts, depth + 1) for item in value)
    if kind is dict and depth < _DEEP:
        parts.extend(value)
        return kind, tuple(freeze(item, parts, depth + 1) for item in value.values())
    if content := _content(value):
        return kind, content
    parts.append(value)
    return None


def _content(value: Any) -> Any:
    """Return the digest of an array's or a tensor's content, None for anything else."""
    module = type(value).__module__.partition(".")[0]
    if module == "numpy" and type(value).__name__ == "ndarray" and not value.dtype.hasobject:
        return value.shape, value.dtype.str, digest(value)
    if module == "torch" and type(value).__name__ == "Tensor" and value.device.type == "cpu":
        flat = value.detach().reshape(-1).clone()
        return tuple(value.shape), str(value.dtype), digest(memory_of(flat.untyped_storage()))
    return None
