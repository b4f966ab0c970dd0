"""Objects that the notebook and the rank both have, by the numbers that they got on the way out.

Pickling and unpickling number the same objects alike (the pickles' memos), so that no address
has to be written. What was made only for the way has no owner afterwards, and is left out.
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
    """objects: by number. One with several numbers has the first: a DDP arrives as its module."""

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
        """Return the number of a storage, whichever Python object stands for it."""
        return self._storages.get(storage._cdata)

    def drop(self, numbers: Iterable[int]) -> None:
        """Forget that both sides have these; they stay alive, so that their addresses stay theirs."""
        gone = set(numbers)
        self._numbers = {key: number for key, number in self._numbers.items() if number not in gone}
        self._storages = {key: number for key, number in self._storages.items() if number not in gone}
        self._dropped += [self.objects.pop(number) for number in gone if number in self.objects]

    def adopt(self, storage: Any, number: int) -> None:
        """Take a storage for the successor of the one with that number: a tensor moved to a GPU."""
        self._storages = {key: old for key, old in self._storages.items() if old != number}
        self._storages[storage._cdata] = number
        self.objects[number] = storage

    @classmethod
    def of_pickler(cls, memo: dict[int, tuple[int, Any]]) -> SharedObjects:
        """Return what a pickler's memo had. The pickler has to be gone, and nobody else may hold the memo."""
        objects = {
            number: obj.storage if isinstance(obj, StoredTensorStorage) else obj
            for number, obj in memo.values()
        }
        memo.clear()
        return cls(_lasting(objects))

    @classmethod
    def of_unpickler(cls, memo: dict[int, Any], shared: bytes) -> SharedObjects:
        """Return what an unpickler's memo had of what lasts on the other side, too (see `shared`)."""
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
        """Write the numbers for the other side: a bit for each."""
        bits = bytearray(max(self.objects, default=-1) // 8 + 1)
        for number in self.objects:
            bits[number // 8] |= 1 << number % 8
        return zlib.compress(bytes(bits), 1)


def is_storage(obj: object) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(obj, torch.UntypedStorage)


def _lasting(objects: dict[int, Any]) -> dict[int, Any]:
    """Leave out, in place, what cannot change and is written in no time, and what nobody else holds."""
    for number in [number for number, obj in objects.items() if not _counts(obj)]:
        del objects[number]
    alone = _references({0: object()})[0]
    while gone := [n for n, count in _references(objects).items() if count <= alone and _may_go(objects[n])]:
        for number in gone:
            del objects[number]
    return objects


def _may_go(obj: Any) -> bool:
    """Tell whether it is for nobody. What a weak reference leads to is for its owner: a hook's handle."""
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
