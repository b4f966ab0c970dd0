"""Objects that both the notebook and the rank have, by their numbers in the pickle that was sent.

Pickler and unpickler give the same object the same number in their memos, so no other identifier is needed.
Objects that existed only for pickling have no owner afterwards, and are left out.
"""

from __future__ import annotations

import sys
import zlib
from collections.abc import Iterable
from pickle import PickleBuffer
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any
from weakref import getweakrefcount

from cloudpickle import cloudpickle

from minicluster.changes.equality import ATOMS
from minicluster.pickling.tensors import StoredTensorStorage
from minicluster.pickling.unpickling import HOME_MARK

_SMALL = 1000


class SharedObjects:
    """Objects by number. One with several numbers keeps the first: a DDP arrives as its module."""

    def __init__(self, objects: dict[int, Any]) -> None:
        self.objects = objects
        self._numbers: dict[int, int] = {}
        self._storages: dict[int, int] = {}
        self._dropped: list[Any] = []
        for number, obj in objects.items():
            self._numbers.setdefault(id(obj), number)
            if is_storage(obj):
                self._storages.setdefault(obj._cdata, number)

    def number(self, obj: object) -> int | None:
        number = self._numbers.get(id(obj))
        return self._storages.get(obj._cdata) if number is None and is_storage(obj) else number  # type: ignore

    def storage(self, storage: Any) -> int | None:
        """Return the number of a storage; several Python objects may stand for one storage."""
        return self._storages.get(storage._cdata)

    def drop(self, numbers: Iterable[int]) -> None:
        """Forget these objects, but keep them alive, so that no other object gets their id."""
        gone = set(numbers)
        self._numbers = {key: number for key, number in self._numbers.items() if number not in gone}
        self._storages = {key: number for key, number in self._storages.items() if number not in gone}
        self._dropped += [self.objects.pop(number) for number in gone if number in self.objects]

    def adopt(self, storage: Any, number: int) -> None:
        """Give a storage the number of its predecessor, for example after a tensor moved to a GPU."""
        self._storages = {key: old for key, old in self._storages.items() if old != number}
        self._storages[storage._cdata] = number
        self.objects[number] = storage

    @classmethod
    def of_pickler(cls, memo: dict[int, tuple[int, Any]]) -> SharedObjects:
        """Return the objects of a pickler's memo. The pickler must be gone: references are counted here."""
        objects = {
            number: obj.storage if isinstance(obj, StoredTensorStorage) else obj
            for number, obj in memo.values()
        }
        memo.clear()
        return cls(_lasting(objects))

    @classmethod
    def of_unpickler(cls, memo: dict[int, Any], shared: bytes) -> SharedObjects:
        """Return the objects of an unpickler's memo that the other side has, too. shared: see `shared`."""
        bits = int.from_bytes(zlib.decompress(shared), "little") if shared else 0
        there = bin(bits)[:1:-1]
        objects = {n: obj for n, obj in sorted(memo.items()) if n < len(there) and there[n] == "1"}
        memo.clear()
        seen: set[int] = set()
        twice = [n for n, obj in objects.items() if id(obj) in seen or seen.add(id(obj))]
        for number in twice:
            del objects[number]
        return cls(_lasting(objects))

    def shared(self) -> bytes:
        """Return the numbers for the other side, compressed: one bit for each."""
        bits = bytearray(max(self.objects, default=-1) // 8 + 1)
        for number in self.objects:
            bits[number // 8] |= 1 << number % 8
        return zlib.compress(bytes(bits), 1)


def is_storage(obj: object) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(obj, torch.UntypedStorage)


def _lasting(objects: dict[int, Any]) -> dict[int, Any]:
    """Remove, in place, small immutable objects and objects that nothing else refers to."""
    for number in [number for number, obj in objects.items() if not _counts(obj)]:
        del objects[number]
    alone = _references({0: object()})[0]
    while gone := [n for n, count in _references(objects).items() if count <= alone and _may_go(objects[n])]:
        for number in gone:
            del objects[number]
    return objects


def _may_go(obj: Any) -> bool:
    """Whether it may be removed. An object with a weak reference may not: a hook's handle, for example."""
    return not is_storage(obj) and not getweakrefcount(obj)


def _references(objects: dict[int, Any]) -> dict[int, int]:
    return {number: sys.getrefcount(obj) for number, obj in objects.items()}


def _counts(obj: Any) -> bool:
    kind = type(obj)
    if kind in ATOMS:
        return kind in (str, bytes) and len(obj) > _SMALL
    if obj is HOME_MARK or kind in (BuiltinFunctionType, PickleBuffer) or issubclass(kind, ModuleType):
        return False
    if issubclass(kind, type | FunctionType):
        return not cloudpickle._should_pickle_by_reference(obj)
    return True
