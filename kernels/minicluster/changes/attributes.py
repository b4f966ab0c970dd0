"""What has names: the attributes of objects, and of classes that the notebook defined."""

from __future__ import annotations

import copyreg
from collections.abc import Iterator
from typing import Any

from minicluster.changes.aspects import Aspect, Look, Moved, Undo
from minicluster.changes.sameness import same
from minicluster.pickling.optimizers import own_attributes


class Named(Aspect):
    """Of what has names: a state is what they are set to, and which ones are removed."""

    def state(self, obj: Any, before: Look, now: Look, moved: Moved) -> Any:
        was = dict(zip(before.facts, before.parts, strict=True))
        have = dict(zip(now.facts, now.parts, strict=True))
        differs = {
            name: value
            for name, value in have.items()
            if name not in was or not same(was[name], value) or moved(value)
        }
        return differs, [name for name in was if name not in have]

    def entries(self, state: Any) -> Iterator[tuple[str, Any]]:
        return ((f".{name}", value) for name, value in state[0].items())

    def without(self, state: Any, path: str) -> Any:
        return {name: value for name, value in state[0].items() if f".{name}" != path}, state[1]


_CLASS_OWN = frozenset(
    {
        *("__dict__", "__weakref__", "__module__", "__doc__", "__qualname__", "_abc_impl"),
        *("__abstractmethods__", "__firstlineno__", "__static_attributes__", "__slotnames__"),
        *("__annotations_cache__", "__annotate_func__", "__annotate__"),
    }
)
"""What Python itself keeps in a class."""


class ClassFields(Named):
    """Of a class that the notebook defined."""

    code = "class"

    def look(self, obj: type) -> Look:
        names = [name for name in vars(obj) if name not in _CLASS_OWN]
        return Look(tuple(names), [vars(obj)[name] for name in names])

    def put(self, obj: type, state: Any) -> Undo:
        old = {name: vars(obj)[name] for name in (*state[0], *state[1]) if name in vars(obj)}
        new = [name for name in state[0] if name not in old]
        _set_class(obj, *state)
        return lambda: _set_class(obj, old, new)


def _set_class(cls: type, values: dict[str, Any], removed: list[str]) -> None:
    for name, value in values.items():
        type.__setattr__(cls, name, value)
    for name in removed:
        if name in vars(cls):
            type.__delattr__(cls, name)


class Attributes(Named):
    """Of an object: what its `__dict__` and its slots hold, without what `__getstate__` leaves out."""

    code = "attributes"

    def look(self, obj: Any) -> Look:
        have = attributes_of(obj)
        if type(obj).__getstate__ is not object.__getstate__:
            state = obj.__getstate__()
            # An array's is a tuple; what such a class keeps beside it are attributes like any other's.
            if isinstance(state, dict):
                have = {name: have[name] for name in (*state, *own_attributes(obj)) if name in have}
        return Look(tuple(have), [*have.values()])

    def put(self, obj: Any, state: Any) -> Undo:
        have = attributes_of(obj)
        old = {name: have[name] for name in (*state[0], *state[1]) if name in have}
        new = [name for name in state[0] if name not in old]
        _set_attributes(obj, *state)
        return lambda: _set_attributes(obj, old, new)


def attributes_of(obj: Any) -> dict[str, Any]:
    """Return what an object's `__dict__` and slots hold."""
    have = getattr(obj, "__dict__", None)
    found = dict(have) if isinstance(have, dict) else {}
    for name in copyreg._slotnames(type(obj)):  # type: ignore[attr-defined]
        try:
            found[name] = object.__getattribute__(obj, name)
        except AttributeError:
            continue
    return found


def _set_attributes(obj: Any, values: dict[str, Any], removed: list[str]) -> None:
    # Not by setattr: frozen dataclasses refuse it, modules do more than to set.
    own = getattr(obj, "__dict__", {})
    slots = set(copyreg._slotnames(type(obj)))  # type: ignore[attr-defined]
    for name, value in values.items():
        if name in slots:
            object.__setattr__(obj, name, value)
        else:
            own[name] = value
    for name in removed:
        if name in slots:
            object.__delattr__(obj, name)
        else:
            own.pop(name, None)
