"""Which aspects an object of any type has, and their state now, one level deep."""

from __future__ import annotations

import array
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from types import CellType, FunctionType, ModuleType
from typing import Any

from minicluster.changes.arrays import (
    Elements,
    Geometry,
    Memory,
    StructuredElement,
    UnstridedTensor,
    owner_of,
    tensor_digest,
)
from minicluster.changes.aspects import (
    Arguments,
    Aspect,
    Attributes,
    Bytes,
    CellContents,
    ClassFields,
    Entries,
    FunctionFields,
    Items,
    Members,
    Queued,
    Reading,
    Undo,
    attributes_of,
)
from minicluster.changes.digest import digest
from minicluster.changes.equality import never_changes, same_all
from minicluster.pickling.pandas_tables import is_table, taken_apart

Readings = tuple[type, tuple[str, ...], tuple[Reading, ...]]
"""An object's type, the codes of its aspects, and what was read of each."""
_PAYLOADS: tuple[tuple[type, Aspect], ...] = (
    (list, Items()),
    (dict, Entries()),
    (set, Members()),
    (deque, Queued()),
    (bytearray, Bytes()),
    (array.array, Bytes()),
    (BaseException, Arguments()),
)
_ALONE: tuple[tuple[type, Aspect], ...] = (
    (CellType, CellContents()),
    (FunctionType, FunctionFields()),
    (type, ClassFields()),
)
_CONTAINERS = frozenset({list, dict, set, deque, bytearray})

_LONG = 1000
_DEEP = 50


class Anatomy:
    """Reads objects by their aspects.

    number: returns an object's number if both sides have it, else None. storage: the same for a storage.
    """

    def __init__(self, number: Callable[[object], int | None], storage: Callable[[Any], int | None]) -> None:
        self._number = number
        self._attributes, self._encoded, self._reduced = Attributes(), Encoded(), Reduced()
        self._elements = Elements(lambda owner: number(owner) is not None)
        self._table, self._record = PandasTable(), StructuredElement()
        self._geometry, self._unstrided, self._memory = Geometry(storage), UnstridedTensor(), Memory()
        self._of_type: dict[type, tuple[Aspect, ...] | None] = {}
        own = (self._attributes, self._encoded, self._reduced, self._elements, self._table, self._record)
        tensors = (self._geometry, self._unstrided, self._memory)
        self.by_code = {one.code: one for one in (*own, *tensors, *(it for _, it in (*_PAYLOADS, *_ALONE)))}

    def read(self, obj: Any) -> Readings | None:
        """Return an object's state; None if it never changes. The object's own methods may raise anything."""
        aspects = self.aspects(obj)
        if not aspects:
            return None
        return type(obj), _codes(aspects), tuple([self._complete(aspect.read(obj)) for aspect in aspects])

    def _complete(self, reading: Reading) -> Reading:
        if _CONTAINERS.isdisjoint(map(type, reading.parts)):
            return reading
        inside = self._inside(reading.parts, set())
        return reading._replace(inside=inside) if inside else reading

    def _inside(self, parts: list[Any], seen: set[int]) -> tuple[Reading, ...]:
        """Read containers that only this side has, since they are not tracked by a number."""
        if _CONTAINERS.isdisjoint(map(type, parts)):
            return ()
        found: list[Reading] = []
        for part in parts:
            if self.is_loose(part) and id(part) not in seen:
                seen.add(id(part))
                reading = self.aspects(part)[0].read(part)
                found += [reading, *self._inside(reading.parts, seen)]
        return tuple(found)

    def is_loose(self, part: object) -> bool:
        """Whether a part is a container that only this side has."""
        return type(part) in _CONTAINERS and self._number(part) is None

    def aspects(self, obj: Any) -> tuple[Aspect, ...]:
        kind = type(obj)
        if kind not in self._of_type:
            self._of_type[kind] = self._choose(kind)
        chosen = self._of_type[kind]
        if chosen is not None:
            return chosen
        if _is_tensor(kind):
            return (self._geometry, self._attributes) if _is_strided(obj) else (self._unstrided,)
        # A `__getstate__` may leave some attributes out, or convert them.
        plain = are_attributes(obj.__getstate__(), attributes_of(obj))
        return (self._attributes,) if plain else (self._encoded,)

    def refuses(self, obj: Any, code: str, delta: Any) -> str:
        """Return why a delta cannot be applied to an object; empty if it can."""
        bases = tuple(base for base, aspect in (*_PAYLOADS, *_ALONE) if aspect.code == code)
        if bases and not isinstance(obj, bases):
            return "travels as another type, whose changes it does not take"
        return self.by_code[code].refuses(obj, delta)

    def parts(self, obj: Any) -> Iterator[Any]:
        """Yield the parts of an object of any type."""
        if isinstance(obj, tuple | frozenset):
            yield from obj
            return
        if "geometry" in (codes := [aspect.code for aspect in self.aspects(obj)]):
            yield obj.untyped_storage()
        if "elements" in codes and (owner := owner_of(obj)) is not obj:
            yield owner
        readings = self.read(obj)
        for reading in readings[2] if readings else ():
            yield from reading.parts
            if isinstance(reading.facts, frozenset):
                yield from reading.facts

    def _choose(self, kind: type) -> tuple[Aspect, ...] | None:
        """Return the aspects of a type; None if they depend on the object."""
        if never_changes(kind) or issubclass(kind, ModuleType):
            return ()
        for alone, aspect in _ALONE:
            if issubclass(kind, alone):
                return (aspect,)
        if _is_tensor(kind):
            return None
        if is_table(kind):
            return (self._table,)
        if array := self._of_array(kind):
            return array
        payload = tuple(aspect for base, aspect in _PAYLOADS if issubclass(kind, base))
        more = kind.__dictoffset__ != 0 or "__slots__" in vars(kind)
        if payload:
            return (*payload, self._attributes) if more else payload
        if issubclass(kind, tuple | frozenset | str | bytes | int | float):
            return (self._attributes,)
        if kind.__reduce__ is not object.__reduce__ or kind.__reduce_ex__ is not object.__reduce_ex__:
            return (self._reduced, self._attributes) if more else (self._reduced,)
        return (self._attributes,) if kind.__getstate__ is object.__getstate__ else None

    def _of_array(self, kind: type) -> tuple[Aspect, ...]:
        torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
        if numpy is not None and issubclass(kind, numpy.ndarray):
            return (self._elements,)
        if numpy is not None and issubclass(kind, numpy.void):
            return (self._record,)
        if torch is not None and issubclass(kind, torch.UntypedStorage):
            return (self._memory,)
        return ()


@cache
def _codes(aspects: tuple[Aspect, ...]) -> tuple[str, ...]:
    return tuple(aspect.code for aspect in aspects)


def _is_tensor(kind: type) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and issubclass(kind, torch.Tensor)


def _is_strided(tensor: Any) -> bool:
    torch = sys.modules["torch"]
    wraps = type(tensor).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__
    return tensor.layout is torch.strided and not (tensor.is_quantized or tensor.is_nested or wraps)


class PandasTable(Aspect):
    """A frame or a series as a whole: pandas itself pickles its columns, values, index and `attrs`."""

    code = "table"

    def read(self, obj: Any) -> Reading:
        head, planes = taken_apart(obj)
        return Reading((digest(head), tuple(digest(plane.raw()) for plane in planes)), [])

    def current(self, obj: Any) -> Any:
        return [obj.copy(deep=False)]

    def apply(self, obj: Any, delta: Any) -> Undo:
        old = obj.__getstate__()
        obj.__setstate__(delta[0].__getstate__())
        return lambda: obj.__setstate__(old)


# Objects whose state is known only from their own `__getstate__` or `__reduce_ex__`.


class Reduced(Aspect):
    """An object with its own `__reduce__`: generators of random numbers, partial, BytesIO."""

    code = "reduced"

    def read(self, obj: Any) -> Reading:
        made, args, state, items, pairs = _reduction(obj)
        parts: list[Any] = []
        made_of = freeze((made, args), parts)
        # A state that only lists the attributes adds nothing to them.
        own_state = () if are_attributes(state, attributes_of(obj)) else (state, items, pairs)
        facts = (made_of, len(parts), freeze(own_state, parts), hasattr(obj, "__setstate__"))
        return Reading(facts, parts)

    def fits(self, before: Reading, now: Reading) -> bool:
        """Whether its constructor and arguments are the same, and `__setstate__` can set the rest."""
        made_of, count, _, settable = now.facts
        alike = before.facts[:2] == (made_of, count) and same_all(before.parts[:count], now.parts[:count])
        return alike and settable

    def current(self, obj: Any) -> Any:
        return _reduction(obj)[2]

    def refuses(self, obj: Any, delta: Any) -> str:
        # The iterator of a dict arrives on the rank as that of a list.
        return "" if hasattr(obj, "__setstate__") else "cannot be changed here"

    def write(self, obj: Any, delta: Any) -> None:
        obj.__setstate__(delta)


def _reduction(obj: Any) -> tuple[Any, Any, Any, list[Any], list[Any]]:
    reduced = obj.__reduce_ex__(5)
    if isinstance(reduced, str):
        return reduced, (), None, [], []
    made, args, state, items, pairs = (*reduced, None, None, None)[:5]
    return made, args, state, list(items or ()), list(pairs or ())


def are_attributes(state: Any, have: Mapping[str, Any]) -> bool:
    """Whether a state consists only of attributes of the object."""
    return isinstance(state, dict) and all(name in have and have[name] is it for name, it in state.items())


class Encoded(Aspect):
    """An object whose `__getstate__` converts its attributes."""

    code = "encoded"

    def read(self, obj: Any) -> Reading:
        parts: list[Any] = []
        return Reading(freeze(obj.__getstate__(), parts), parts)

    def current(self, obj: Any) -> Any:
        return obj.__getstate__()

    def write(self, obj: Any, delta: Any) -> None:
        """Set the state as unpickling does. A pair has the state of the `__dict__` and that of the slots."""
        if hasattr(obj, "__setstate__"):
            obj.__setstate__(delta)
            return
        fields, slots = delta if isinstance(delta, tuple) else (delta, None)
        if fields:
            vars(obj).update(fields)
        for name, value in (slots or {}).items():
            object.__setattr__(obj, name, value)


def freeze(value: Any, parts: list[Any], depth: int = 0) -> Any:
    """Return the structure of a value that may be a new object at each reading; add its leaves to `parts`."""
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
        return tuple(value.shape), str(value.dtype), tensor_digest(value)
    return None
