"""The state of Python's own types of objects, one level deep, and how a change is applied to it.

An aspect is one part of an object's state. It reads that part (`read`), returns what the rank sends back
(`delta`), and writes this into the notebook's object (`apply`, which returns a function to undo it).
"""

from __future__ import annotations

import copyreg
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator
from types import CellType, FunctionType
from typing import Any, ClassVar, NamedTuple

from minicluster.changes.digest import digest
from minicluster.changes.equality import never_changes, same, same_all
from minicluster.pickling.optimizers import own_attributes

Undo = Callable[[], object]
Moved = Callable[[object], bool]
"""Returns whether a part must be sent although it is the same object, because its content changed."""


class Reading(NamedTuple):
    """An object's state as it was read. facts: compared by equality; parts: one by one (see equality).

    inside: readings of the containers among the parts that only this side has: no number leads to them.
    """

    facts: Any
    parts: list[Any]
    inside: tuple[Reading, ...] = ()

    def is_same(self, other: Reading) -> bool:
        return (
            self.facts == other.facts
            and same_all(self.parts, other.parts)
            and (self.inside is other.inside or self._has_same_inside(other))
        )

    def _has_same_inside(self, other: Reading) -> bool:
        return len(self.inside) == len(other.inside) and all(map(Reading.is_same, self.inside, other.inside))


class Aspect:
    """Base of all aspects. late: whether it is written last: nothing fails then, if `refuses` is empty."""

    code: ClassVar[str] = ""
    late: ClassVar[bool] = False

    def read(self, obj: Any) -> Reading:
        raise NotImplementedError

    def fits(self, before: Reading, now: Reading) -> bool:
        """Whether the new state can be written into the object."""
        return True

    def current(self, obj: Any) -> Any:
        """Return the whole state as `write` takes it. It is pickled, so it has the parts, not the object."""
        raise NotImplementedError

    def delta(self, obj: Any, before: Reading, now: Reading, moved: Moved) -> Any:
        """Return what the rank sends back."""
        return self.current(obj)

    def entries(self, delta: Any) -> Iterator[tuple[str, Any]]:
        """Yield path and value of each entry that may be left out of a delta."""
        return iter(())

    def without(self, delta: Any, path: str) -> Any:
        raise NotImplementedError

    def refuses(self, obj: Any, delta: Any) -> str:
        """Return why a delta cannot be applied; empty if it can."""
        return ""

    def write(self, obj: Any, delta: Any) -> None:
        raise NotImplementedError

    def apply(self, obj: Any, delta: Any) -> Undo:
        """Write a delta; return a function that undoes it. Late aspects need no undo."""
        old = None if self.late else self.current(obj)
        self.write(obj, delta)
        return (lambda: None) if self.late else (lambda: self.write(obj, old))


class Items(Aspect):
    """The items of a list."""

    code = "items"

    def read(self, obj: Any) -> Reading:
        return Reading(None, list.copy(obj))

    def current(self, obj: Any) -> Any:
        return list.copy(obj)

    def write(self, obj: Any, delta: Any) -> None:
        list.__setitem__(obj, slice(None), delta)


class Entries(Aspect):
    """The entries of a dict, in order.

    A delta is its keys, its values, the keys whose values do not change, and its default factory.
    """

    code = "entries"

    def read(self, obj: Any) -> Reading:
        kind = _kind_of(obj)
        return Reading((len(obj), _factory_of(obj)), [*kind.keys(obj), *kind.values(obj)])

    def current(self, obj: Any) -> Any:
        kind = _kind_of(obj)
        return [*kind.keys(obj)], [*kind.values(obj)], [], _factory_of(obj)

    def entries(self, delta: Any) -> Iterator[tuple[str, Any]]:
        keys, values = delta[:2]
        return ((f"[{key!r:.60}]", (key, value)) for key, value in zip(keys, values, strict=True))

    def without(self, delta: Any, path: str) -> Any:
        keys, values, stay, factory = delta
        kept = [(key, value) for key, value in zip(keys, values, strict=True) if f"[{key!r:.60}]" != path]
        gone = [key for key in keys if f"[{key!r:.60}]" == path and isinstance(key, str | int)]
        return [key for key, _ in kept], [value for _, value in kept], [*stay, *gone], factory

    def write(self, obj: Any, delta: Any) -> None:
        keys, values, stay, factory = delta
        kind = _kind_of(obj)
        kept = [(key, dict.__getitem__(obj, key)) for key in stay if dict.__contains__(obj, key)]
        if isinstance(obj, defaultdict):
            obj.default_factory = factory
        kind.clear(obj)
        for key, value in [*zip(keys, values, strict=True), *kept]:
            kind.__setitem__(obj, key, value)


def _kind_of(obj: Any) -> type[dict[Any, Any]]:
    """Return the class whose methods to use: a subclass may override them, OrderedDict needs its own."""
    return OrderedDict if isinstance(obj, OrderedDict) else dict


def _factory_of(obj: Any) -> Any:
    return obj.default_factory if isinstance(obj, defaultdict) else None


class Members(Aspect):
    """The members of a set."""

    code = "members"

    def read(self, obj: Any) -> Reading:
        # Equal members count as the same, except mutable ones, which are compared by identity.
        kinds = {kind for kind in set(map(type, obj)) if not never_changes(kind)}
        parts = sorted((it for it in obj if type(it) in kinds), key=id) if kinds else []
        return Reading(frozenset(obj), parts)

    def current(self, obj: Any) -> Any:
        return list(obj)

    def write(self, obj: Any, delta: Any) -> None:
        set.clear(obj)
        set.update(obj, delta)


class Queued(Aspect):
    """The items of a deque."""

    code = "queued"

    def read(self, obj: Any) -> Reading:
        return Reading(obj.maxlen, list(obj))

    def fits(self, before: Reading, now: Reading) -> bool:
        return before.facts == now.facts

    def current(self, obj: Any) -> Any:
        return list(obj)

    def write(self, obj: Any, delta: Any) -> None:
        deque.clear(obj)
        deque.extend(obj, delta)


class Arguments(Aspect):
    """The arguments of an exception."""

    code = "arguments"

    def read(self, obj: BaseException) -> Reading:
        return Reading(None, list(obj.args))

    def current(self, obj: BaseException) -> Any:
        return list(obj.args)

    def write(self, obj: BaseException, delta: Any) -> None:
        obj.args = tuple(delta)


class Bytes(Aspect):
    """The bytes of a bytearray or an array.array."""

    code = "bytes"

    def read(self, obj: Any) -> Reading:
        return Reading((len(obj), digest(obj)), [])

    def current(self, obj: Any) -> Any:
        return obj[:]

    def write(self, obj: Any, delta: Any) -> None:
        obj[:] = delta


class CellContents(Aspect):
    """The content of a closure's cell, a variable that functions share; empty if it is not assigned."""

    code = "content"

    def read(self, obj: CellType) -> Reading:
        contents = self.current(obj)
        return Reading(bool(contents), contents)

    def current(self, obj: CellType) -> Any:
        try:
            return [obj.cell_contents]
        except ValueError:
            return []

    def write(self, obj: CellType, delta: Any) -> None:
        if delta:
            obj.cell_contents = delta[0]
        else:
            del obj.cell_contents


class FunctionFields(Aspect):
    """The defaults and the attributes of a function."""

    code = "fields"

    def read(self, obj: FunctionType) -> Reading:
        keywords, fields = obj.__kwdefaults__ or {}, obj.__dict__
        facts = (obj.__defaults__ is None, tuple(keywords), tuple(fields))
        return Reading(facts, [*(obj.__defaults__ or ()), *keywords.values(), *fields.values()])

    def current(self, obj: FunctionType) -> Any:
        return obj.__defaults__, obj.__kwdefaults__, dict(obj.__dict__)

    def write(self, obj: FunctionType, delta: Any) -> None:
        obj.__defaults__, obj.__kwdefaults__ = delta[:2]
        obj.__dict__.clear()
        obj.__dict__.update(delta[2])


class Named(Aspect):
    """Base of aspects with named values: a delta is the values to set, and the names to remove."""

    def values(self, obj: Any) -> dict[str, Any]:
        """Return what an object has by name."""
        raise NotImplementedError

    def delta(self, obj: Any, before: Reading, now: Reading, moved: Moved) -> Any:
        was = dict(zip(before.facts, before.parts, strict=True))
        have = dict(zip(now.facts, now.parts, strict=True))
        differs = {
            name: value
            for name, value in have.items()
            if name not in was or not same(was[name], value) or moved(value)
        }
        return differs, [name for name in was if name not in have]

    def entries(self, delta: Any) -> Iterator[tuple[str, Any]]:
        return ((f".{name}", value) for name, value in delta[0].items())

    def without(self, delta: Any, path: str) -> Any:
        return {name: value for name, value in delta[0].items() if f".{name}" != path}, delta[1]

    def apply(self, obj: Any, delta: Any) -> Undo:
        have = self.values(obj)
        old = {name: have[name] for name in (*delta[0], *delta[1]) if name in have}
        new = [name for name in delta[0] if name not in old]
        self.write(obj, delta)
        return lambda: self.write(obj, (old, new))


_CLASS_OWN = frozenset(
    {
        *("__dict__", "__weakref__", "__module__", "__doc__", "__qualname__", "_abc_impl"),
        *("__abstractmethods__", "__firstlineno__", "__static_attributes__", "__slotnames__"),
        *("__annotations_cache__", "__annotate_func__", "__annotate__"),
    }
)
"""Attributes that Python itself sets on a class."""


class ClassFields(Named):
    """The attributes of a class that the notebook defined."""

    code = "class"

    def values(self, obj: type) -> dict[str, Any]:
        return dict(vars(obj))

    def read(self, obj: type) -> Reading:
        names = [name for name in vars(obj) if name not in _CLASS_OWN]
        return Reading(tuple(names), [vars(obj)[name] for name in names])

    def write(self, obj: type, delta: Any) -> None:
        for name, value in delta[0].items():
            type.__setattr__(obj, name, value)
        for name in delta[1]:
            if name in vars(obj):
                type.__delattr__(obj, name)


class Attributes(Named):
    """The attributes in an object's `__dict__` and slots, without those that `__getstate__` leaves out."""

    code = "attributes"

    def values(self, obj: Any) -> dict[str, Any]:
        return attributes_of(obj)

    def read(self, obj: Any) -> Reading:
        have = attributes_of(obj)
        if type(obj).__getstate__ is not object.__getstate__:
            state = obj.__getstate__()
            # A subclass of an array has a tuple as its state; its other attributes are read as usual.
            if isinstance(state, dict):
                have = {name: have[name] for name in (*state, *own_attributes(obj)) if name in have}
        return Reading(tuple(have), [*have.values()])

    def write(self, obj: Any, delta: Any) -> None:
        # Not by setattr: frozen dataclasses refuse it, and torch's modules do more than set.
        own = getattr(obj, "__dict__", {})
        slots = set(copyreg._slotnames(type(obj)))  # type: ignore[attr-defined]
        for name, value in delta[0].items():
            if name in slots:
                object.__setattr__(obj, name, value)
            else:
                own[name] = value
        for name in delta[1]:
            if name in slots:
                object.__delattr__(obj, name)
            else:
                own.pop(name, None)


def attributes_of(obj: Any) -> dict[str, Any]:
    """Return the attributes in an object's `__dict__` and slots."""
    have = getattr(obj, "__dict__", None)
    found = dict(have) if isinstance(have, dict) else {}
    for name in copyreg._slotnames(type(obj)):  # type: ignore[attr-defined]
        try:
            found[name] = object.__getattribute__(obj, name)
        except AttributeError:
            continue
    return found
