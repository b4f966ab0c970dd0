"""What an object consists of, one level deep: which aspects its kind has, and how they stand now."""

from __future__ import annotations

import array
import sys
from collections import deque
from collections.abc import Callable, Iterator
from functools import cache
from types import CellType, FunctionType, ModuleType
from typing import Any

from minicluster.pickling.pandas_tables import is_table
from minicluster.changes.arrays import Elements, Geometry, Memory, Odd, Record, owner_of
from minicluster.changes.aspects import Arguments, Aspect, Bytes, Content, Entries, Fields, Items, Look, Members, Queued
from minicluster.changes.attributes import Attributes, ClassFields, attributes_of
from minicluster.changes.frames import Table
from minicluster.changes.reduced import Encoded, Reduced, are_attributes
from minicluster.changes.sameness import never_changes

Looks = tuple[type, tuple[str, ...], tuple[Look, ...]]
"""An object's type, the codes of its aspects, and what they showed."""

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
    (CellType, Content()),
    (FunctionType, Fields()),
    (type, ClassFields()),
)
_LOOSE = frozenset({list, dict, set, deque, bytearray})


class Anatomy:
    """Takes objects apart.

    number: of an object (or a storage) that both sides have; None for others.
    """

    def __init__(self, number: Callable[[object], int | None], storage: Callable[[Any], int | None]) -> None:
        self._number = number
        self._attributes, self._encoded, self._reduced = Attributes(), Encoded(), Reduced()
        self._elements = Elements(lambda owner: number(owner) is not None)
        self._table, self._record = Table(), Record()
        self._geometry, self._odd, self._memory = Geometry(storage), Odd(), Memory()
        self._of_type: dict[type, tuple[Aspect, ...] | None] = {}
        own = (self._attributes, self._encoded, self._reduced, self._elements, self._table, self._record)
        tensors = (self._geometry, self._odd, self._memory)
        self.by_code = {one.code: one for one in (*own, *tensors, *(it for _, it in (*_PAYLOADS, *_ALONE)))}

    def look(self, obj: Any) -> Looks | None:
        """Say how an object stands; None for one that never changes. Its own methods may raise anything."""
        aspects = self.aspects(obj)
        if not aspects:
            return None
        return type(obj), _codes(aspects), tuple([self._complete(aspect.look(obj)) for aspect in aspects])

    def _complete(self, look: Look) -> Look:
        if _LOOSE.isdisjoint(map(type, look.parts)):
            return look
        inside = self._inside(look.parts, set())
        return look._replace(inside=inside) if inside else look

    def aspects(self, obj: Any) -> tuple[Aspect, ...]:
        kind = type(obj)
        if kind not in self._of_type:
            self._of_type[kind] = self._choose(kind)
        chosen = self._of_type[kind]
        if chosen is not None:
            return chosen
        if _is_tensor(kind):
            return (self._geometry, self._attributes) if _is_strided(obj) else (self._odd,)
        return (self._attributes,) if _is_plainly_encoded(obj) else (self._encoded,)

    def refuses(self, obj: Any, code: str, state: Any) -> str:
        """Say why a state cannot be put into an object; empty when it can."""
        bases = tuple(base for base, aspect in (*_PAYLOADS, *_ALONE) if aspect.code == code)
        if bases and not isinstance(obj, bases):
            return "travels as another type, whose changes it does not take"
        return self.by_code[code].refuses(obj, state)

    def parts(self, obj: Any) -> Iterator[Any]:
        """Yield what an object holds, whatever it is."""
        if isinstance(obj, tuple | frozenset):
            yield from obj
            return
        if "geometry" in (codes := [aspect.code for aspect in self.aspects(obj)]):
            yield obj.untyped_storage()
        if "elements" in codes and (owner := owner_of(obj)) is not obj:
            yield owner
        looks = self.look(obj)
        for look in looks[2] if looks else ():
            yield from look.parts
            if isinstance(look.facts, frozenset):
                yield from look.facts

    def is_loose(self, part: object) -> bool:
        """Tell whether it is a container that only this side has."""
        return type(part) in _LOOSE and self._number(part) is None

    def _inside(self, parts: list[Any], seen: set[int]) -> tuple[Look, ...]:
        """Look into containers that only this side has: nobody else looks at them."""
        if _LOOSE.isdisjoint(map(type, parts)):
            return ()
        found: list[Look] = []
        for part in parts:
            if self.is_loose(part) and id(part) not in seen:
                seen.add(id(part))
                look = self.aspects(part)[0].look(part)
                found += [look, *self._inside(look.parts, seen)]
        return tuple(found)

    def _choose(self, kind: type) -> tuple[Aspect, ...] | None:
        """Return the aspects of a type; None: it depends on the object."""
        if never_changes(kind) or issubclass(kind, ModuleType):
            return ()
        for alone, aspect in _ALONE:
            if issubclass(kind, alone):
                return (aspect,)
        if _is_tensor(kind):
            return None
        if is_table(kind):
            return (self._table,)
        if tensor := self._of_tensor(kind):
            return tensor
        payload = tuple(aspect for base, aspect in _PAYLOADS if issubclass(kind, base))
        more = kind.__dictoffset__ != 0 or "__slots__" in vars(kind)
        if payload:
            return (*payload, self._attributes) if more else payload
        if issubclass(kind, tuple | frozenset | str | bytes | int | float):
            return (self._attributes,)
        if not _reduces_as_any_object(kind):
            return (self._reduced, self._attributes) if more else (self._reduced,)
        return (self._attributes,) if kind.__getstate__ is object.__getstate__ else None

    def _of_tensor(self, kind: type) -> tuple[Aspect, ...]:
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


def _reduces_as_any_object(kind: type) -> bool:
    return kind.__reduce__ is object.__reduce__ and kind.__reduce_ex__ is object.__reduce_ex__


def _is_tensor(kind: type) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and issubclass(kind, torch.Tensor)


def _is_strided(tensor: Any) -> bool:
    torch = sys.modules["torch"]
    wraps = type(tensor).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__
    return tensor.layout is torch.strided and not (tensor.is_quantized or tensor.is_nested or wraps)


def _is_plainly_encoded(obj: Any) -> bool:
    """Tell whether an object's `__getstate__` only leaves some attributes out."""
    return are_attributes(obj.__getstate__(), attributes_of(obj))
