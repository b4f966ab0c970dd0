"""What objects consist of, one level deep, and how that is put back: Python's own kinds.

An aspect reads some of an object's state (`look`), says what of it goes back (`state`), and puts it
into the notebook's object (`put`), returning what takes that back again.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator
from types import CellType, FunctionType
from typing import Any, ClassVar, NamedTuple

from minicluster.changes.digest import digest
from minicluster.changes.sameness import never_changes, same_all

Undo = Callable[[], object]
Moved = Callable[[object], bool]
"""Tells of a part that it goes back although it is the same object: what is in it has changed."""


class Look(NamedTuple):
    """What was seen: facts are compared by equality, parts one by one (see sameness).

    inside: the same of the containers among the parts that nobody else looks at.
    """

    facts: Any
    parts: list[Any]
    inside: tuple[Look, ...] = ()

    def is_same(self, other: Look) -> bool:
        return (
            self.facts == other.facts
            and same_all(self.parts, other.parts)
            and (self.inside is other.inside or self._has_same_inside(other))
        )

    def _has_same_inside(self, other: Look) -> bool:
        return len(self.inside) == len(other.inside) and all(map(Look.is_same, self.inside, other.inside))


class Aspect:
    """Base of all aspects. late: of content that is put last, and cannot fail once `refuses` is empty."""

    code: ClassVar[str] = ""
    late: ClassVar[bool] = False

    def look(self, obj: Any) -> Look:
        raise NotImplementedError

    def fits(self, before: Look, now: Look) -> bool:
        """Tell whether the new state can be put into the object as it was before."""
        return True

    def state(self, obj: Any, before: Look, now: Look, moved: Moved) -> Any:
        """Return what goes back; it is pickled, so it holds the object's parts but not the object."""
        raise NotImplementedError

    def entries(self, state: Any) -> Iterator[tuple[str, Any]]:
        """Yield what of a state may stay away without harm to the rest: its path, its value."""
        return iter(())

    def without(self, state: Any, path: str) -> Any:
        raise NotImplementedError

    def refuses(self, obj: Any, state: Any) -> str:
        """Say why a state cannot be put; empty when it can."""
        return ""

    def put(self, obj: Any, state: Any) -> Undo:
        raise NotImplementedError


class Items(Aspect):
    """Of a list."""

    code = "items"

    def look(self, obj: Any) -> Look:
        return Look(None, list.copy(obj))

    def state(self, obj: Any, before: Look, now: Look, moved: Moved) -> Any:
        return now.parts

    def put(self, obj: Any, state: Any) -> Undo:
        old = list.copy(obj)
        list.__setitem__(obj, slice(None), state)
        return lambda: list.__setitem__(obj, slice(None), old)


class Entries(Aspect):
    """Of a dict, in its order. A state is its keys, its values, keys whose values stay as they are, and
    its default factory.
    """

    code = "entries"

    def look(self, obj: Any) -> Look:
        kind = _kind_of(obj)
        return Look((len(obj), _factory_of(obj)), [*kind.keys(obj), *kind.values(obj)])

    def state(self, obj: Any, before: Look, now: Look, moved: Moved) -> Any:
        half = len(now.parts) // 2
        return now.parts[:half], now.parts[half:], [], now.facts[1]

    def entries(self, state: Any) -> Iterator[tuple[str, Any]]:
        keys, values = state[:2]
        return ((f"[{key!r:.60}]", (key, value)) for key, value in zip(keys, values, strict=True))

    def without(self, state: Any, path: str) -> Any:
        keys, values, stay, factory = state
        kept = [(key, value) for key, value in zip(keys, values, strict=True) if f"[{key!r:.60}]" != path]
        gone = [key for key in keys if f"[{key!r:.60}]" == path and isinstance(key, str | int)]
        return [key for key, _ in kept], [value for _, value in kept], [*stay, *gone], factory

    def put(self, obj: Any, state: Any) -> Undo:
        keys, values, stay, factory = state
        old = list(_kind_of(obj).items(obj)), _factory_of(obj)
        kept = [(key, dict.__getitem__(obj, key)) for key in stay if dict.__contains__(obj, key)]
        _fill(obj, [*zip(keys, values, strict=True), *kept], factory)
        return lambda: _fill(obj, *old)


def _kind_of(obj: Any) -> type[dict[Any, Any]]:
    """Return whose methods to use: a subclass's own may do anything, an OrderedDict has its own order."""
    return OrderedDict if isinstance(obj, OrderedDict) else dict


def _factory_of(obj: Any) -> Any:
    return obj.default_factory if isinstance(obj, defaultdict) else None


def _fill(obj: Any, pairs: list[tuple[Any, Any]], factory: Any) -> None:
    kind = _kind_of(obj)
    if isinstance(obj, defaultdict):
        obj.default_factory = factory
    kind.clear(obj)
    for key, value in pairs:
        kind.__setitem__(obj, key, value)


class Members(Aspect):
    """Of a set."""

    code = "members"

    def look(self, obj: Any) -> Look:
        # Equal ones count as one, unless they have more to them than being equal.
        kinds = {kind for kind in set(map(type, obj)) if not never_changes(kind)}
        return Look(frozenset(obj), sorted((it for it in obj if type(it) in kinds), key=id) if kinds else [])

    def state(self, obj: Any, before: Look, now: Look, moved: Moved) -> Any:
        return list(now.facts)

    def put(self, obj: Any, state: Any) -> Undo:
        old = list(obj)
        _fill_set(obj, state)
        return lambda: _fill_set(obj, old)


def _fill_set(obj: Any, members: list[Any]) -> None:
    set.clear(obj)
    set.update(obj, members)


class Queued(Aspect):
    """Of a deque."""

    code = "queued"

    def look(self, obj: Any) -> Look:
        return Look(obj.maxlen, list(obj))

    def fits(self, before: Look, now: Look) -> bool:
        return before.facts == now.facts

    def state(self, obj: Any, before: Look, now: Look, moved: Moved) -> Any:
        return now.parts

    def put(self, obj: Any, state: Any) -> Undo:
        old = list(obj)
        _fill_queue(obj, state)
        return lambda: _fill_queue(obj, old)


def _fill_queue(obj: Any, items: list[Any]) -> None:
    deque.clear(obj)
    deque.extend(obj, items)


class Arguments(Aspect):
    """Of an exception."""

    code = "arguments"

    def look(self, obj: BaseException) -> Look:
        return Look(None, list(obj.args))

    def state(self, obj: BaseException, before: Look, now: Look, moved: Moved) -> Any:
        return now.parts

    def put(self, obj: BaseException, state: Any) -> Undo:
        old = obj.args
        obj.args = tuple(state)
        return lambda: setattr(obj, "args", old)


class Bytes(Aspect):
    """Of a bytearray or an array.array."""

    code = "bytes"

    def look(self, obj: Any) -> Look:
        return Look((len(obj), digest(obj)), [])

    def state(self, obj: Any, before: Look, now: Look, moved: Moved) -> Any:
        return obj[:]

    def put(self, obj: Any, state: Any) -> Undo:
        old = obj[:]
        obj[:] = state
        return lambda: obj.__setitem__(slice(None), old)


class Content(Aspect):
    """Of the cell that closures share a variable by."""

    code = "content"

    def look(self, obj: CellType) -> Look:
        try:
            return Look(True, [obj.cell_contents])
        except ValueError:
            return Look(False, [])

    def state(self, obj: CellType, before: Look, now: Look, moved: Moved) -> Any:
        return now.parts

    def put(self, obj: CellType, state: Any) -> Undo:
        old = self.look(obj).parts
        _fill_cell(obj, state)
        return lambda: _fill_cell(obj, old)


def _fill_cell(cell: CellType, contents: list[Any]) -> None:
    if contents:
        cell.cell_contents = contents[0]
    else:
        del cell.cell_contents


class Fields(Aspect):
    """Of a function: its defaults and its attributes."""

    code = "fields"
    _names = ("__defaults__", "__kwdefaults__", "__dict__")

    def look(self, obj: FunctionType) -> Look:
        keywords, fields = obj.__kwdefaults__ or {}, obj.__dict__
        facts = (obj.__defaults__ is None, tuple(keywords), tuple(fields))
        return Look(facts, [*(obj.__defaults__ or ()), *keywords.values(), *fields.values()])

    def state(self, obj: FunctionType, before: Look, now: Look, moved: Moved) -> Any:
        return obj.__defaults__, obj.__kwdefaults__, dict(obj.__dict__)

    def put(self, obj: FunctionType, state: Any) -> Undo:
        old = obj.__defaults__, obj.__kwdefaults__, dict(obj.__dict__)
        _set_fields(obj, state)
        return lambda: _set_fields(obj, old)


def _set_fields(function: FunctionType, state: Any) -> None:
    function.__defaults__, function.__kwdefaults__ = state[:2]
    function.__dict__.clear()
    function.__dict__.update(state[2])
