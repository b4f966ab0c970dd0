"""A digest of a value that is equal in all processes, to compare the values of ranks.

A digest of a pickle is not: the order of a set differs between processes, and equal strings may be one object
or several.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterator, Mapping
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

from minicluster.changes.digest import digest
from minicluster.train.strategies import rank as divided

_MOST = 200_000
"""The most objects that are read: more would take seconds."""
_ATOMS = (int, float, complex, bool, str, bytes, bytearray, type(None), range, slice)
_PLAIN = frozenset({int, float, bool, str, type(None)})
_CODE = (ModuleType, FunctionType, BuiltinFunctionType, MethodType, type)


class NotCompared(Exception):
    """The value is different on each rank by its nature, or it is too large."""


def value_digest(value: Any) -> str | None:
    """Return the digest of a value; None if it cannot be compared."""
    try:
        return _Digester().digest(value).hex()
    except Exception:
        # An object's own methods may raise anything.
        return None


class _Digester:
    """Computes the digest of one value. Of modules, only parameters count: buffers differ under DDP."""

    def __init__(self) -> None:
        self._torch: Any = sys.modules.get("torch")
        self._numpy: Any = sys.modules.get("numpy")
        self._seen: dict[int, tuple[Any, bytes]] = {}
        self._objects = 0

    def digest(self, value: Any) -> bytes:
        self._objects += 1
        if self._objects > _MOST:
            raise NotCompared("too many objects")
        if isinstance(value, _ATOMS):
            return _of(type(value), repr(value).encode())
        if isinstance(value, _CODE):
            return _of(type(value), value.__name__.encode())
        if id(value) not in self._seen:
            # The value is kept alive: another object must not get its id.
            self._seen[id(value)] = value, b"inside itself"
            self._seen[id(value)] = value, self._of_container(value)
        return self._seen[id(value)][1]

    def _of_container(self, value: Any) -> bytes:
        kind = type(value)
        if isinstance(value, Mapping):
            return _of(kind, *sorted(self.digest(key) + self.digest(it) for key, it in value.items()))
        if isinstance(value, set | frozenset):
            return _of(kind, *sorted(map(self.digest, value)))
        if isinstance(value, list | tuple | deque):
            plain = _PLAIN.issuperset(map(type, value))
            return _of(kind, *([repr(list(value)).encode()] if plain else map(self.digest, value)))
        return self._of_torch(value) if self._torch else self._of_array(value)

    def _of_torch(self, value: Any) -> bytes:
        torch, kind = self._torch, type(value)
        if divided.is_part(value):
            raise NotCompared("each rank has a part of it")
        if isinstance(value, torch.Tensor):
            return self._of_tensor(value)
        if isinstance(value, torch.nn.Module):
            return _of(torch.nn.Module, *map(self.digest, value.parameters()))
        if isinstance(value, torch.device) or _is_of_data(kind):
            raise NotCompared("each rank has its own")
        if callable(getattr(value, "state_dict", None)):
            return _of(kind, self.digest(value.state_dict()))
        return self._of_array(value)

    def _of_tensor(self, value: Any) -> bytes:
        torch = self._torch
        if type(value) not in (torch.Tensor, torch.nn.Parameter) or value.layout is not torch.strided:
            raise NotCompared("a part of a whole, or of a kind of its own")
        plain = value.detach().resolve_conj().resolve_neg().cpu().contiguous()
        data = plain.reshape(-1).view(torch.uint8).numpy()
        return _of(torch.Tensor, str((value.dtype, tuple(value.shape))).encode(), digest(data))

    def _of_array(self, value: Any) -> bytes:
        numpy = self._numpy
        if numpy is None or not isinstance(value, numpy.ndarray):
            return self._of_object(value)
        if value.dtype.hasobject:
            return _of(type(value), self.digest(value.tolist()))
        data = numpy.ascontiguousarray(value).reshape(-1).view(numpy.uint8)
        return _of(type(value), str((value.dtype, value.shape)).encode(), digest(data))

    def _of_object(self, value: Any) -> bytes:
        reduced = value.__reduce_ex__(4)
        if isinstance(reduced, str):
            return _of(type(value), reduced.encode())
        return _of(type(value), *(self.digest(_listed(part)) for part in reduced))


def _listed(part: Any) -> Any:
    return list(part) if isinstance(part, Iterator) else part


def _is_of_data(kind: type) -> bool:
    """Whether a type is a loader, sampler or data set of torch: each rank has its own part of the samples."""
    return any(one.__module__.startswith("torch.utils.data") for one in kind.__mro__)


def _of(kind: type, *parts: bytes) -> bytes:
    sizes = ",".join(str(len(part)) for part in parts)
    return digest(b"\0".join([f"{kind.__module__}.{kind.__qualname__} {sizes}".encode(), *parts]))
