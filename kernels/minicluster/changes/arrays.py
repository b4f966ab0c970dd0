"""The aspects of arrays, tensors and storages: how they are read, and written in place in the notebook."""

from __future__ import annotations

import ctypes
import pickle
import sys
from collections.abc import Callable
from typing import Any

from cloudpickle import cloudpickle

from minicluster.changes.aspects import Aspect, Reading
from minicluster.changes.digest import digest
from minicluster.pickling.rebuilding import ArrayContent


class Elements(Aspect):
    """The elements of a numpy array. The content of a view is in the array that owns the memory.

    owned: returns whether that array is tracked itself.
    """

    code = "elements"
    late = True

    def __init__(self, owned: Callable[[object], bool]) -> None:
        self._owned = owned

    def read(self, obj: Any) -> Reading:
        facts = (obj.shape, obj.strides, obj.dtype.str, obj.dtype.names, obj.flags.writeable)
        if obj.dtype.hasobject:
            # Records are read as tuples: as objects, they are new ones at each reading.
            return Reading(facts, obj.ravel(order="K").tolist())
        owner = owner_of(obj)
        return Reading((facts, None if owner is not obj and self._owned(owner) else _content_of(obj)), [])

    def fits(self, before: Reading, now: Reading) -> bool:
        return _shape(before) == _shape(now)

    def current(self, obj: Any) -> Any:
        return ArrayContent(obj)

    def refuses(self, obj: Any, delta: Any) -> str:
        if not obj.flags.writeable:
            return "is read-only here"
        return "" if obj.shape == delta.shape and obj.dtype == delta.dtype else "has another shape here"

    def write(self, obj: Any, delta: Any) -> None:
        obj[...] = delta
        if _is_masked(obj):
            obj.fill_value = delta.fill_value


class StructuredElement(Aspect):
    """One element of a structured numpy array, which is a view of the array's memory."""

    code = "record"
    late = True

    def read(self, obj: Any) -> Reading:
        if obj.dtype.hasobject:
            return Reading(str(obj.dtype), [*obj.item()])
        return Reading((str(obj.dtype), digest(obj.tobytes())), [])

    def current(self, obj: Any) -> Any:
        return sys.modules["numpy"].array(obj)

    def refuses(self, obj: Any, delta: Any) -> str:
        return "" if obj.flags.writeable else "is read-only here"

    def write(self, obj: Any, delta: Any) -> None:
        for name in obj.dtype.names or ():
            obj[name] = delta[()][name]


def _is_masked(array: Any) -> bool:
    return isinstance(array, sys.modules["numpy"].ma.MaskedArray)


def _content_of(array: Any) -> tuple[bytes, ...]:
    numpy = sys.modules["numpy"]
    more = [array.mask, array.fill_value] if _is_masked(array) else []
    # As bytes, since dates have no buffer. Any order will do if it is the same each time.
    planes = (numpy.asarray(plane).ravel(order="K") for plane in (array, *more))
    return tuple(digest(plane.view(numpy.uint8)) if plane.size else b"" for plane in planes)


def _shape(reading: Reading) -> Any:
    return reading.facts[0] if len(reading.facts) == 2 else reading.facts


def owner_of(array: Any) -> Any:
    """Return the array that owns the memory of a view, or the array itself."""
    numpy = sys.modules["numpy"]
    while type(array.base) is numpy.ndarray:
        array = array.base
    return array


class Geometry(Aspect):
    """The part of a storage that a strided tensor shows.

    number: returns a storage's number, if both sides have it.
    """

    code = "geometry"

    def __init__(self, number: Callable[[Any], int | None]) -> None:
        self._number = number

    def read(self, obj: Any) -> Reading:
        storage = obj.untyped_storage()
        number = self._number(storage)
        where = ("known", number) if number is not None else ("new", storage._cdata, storage.data_ptr())
        shape = (obj.dtype, tuple(obj.shape), obj.stride(), obj.storage_offset(), obj.requires_grad)
        return Reading((where, shape), [])

    def current(self, obj: Any) -> Any:
        return obj.detach().as_subclass(sys.modules["torch"].Tensor), obj.requires_grad

    def write(self, obj: Any, delta: Any) -> None:
        data, requires_grad = delta
        if data.device != obj.device:
            data = data.to(obj.device)
        if obj.is_leaf:
            # A dtype without gradients is refused while `requires_grad` is set.
            obj.requires_grad_(False)
            obj.data = data
            obj.requires_grad_(requires_grad)
        else:
            obj.data = data


class UnstridedTensor(Aspect):
    """A tensor that is not strided (sparse, quantized). It is returned as a whole, as a new object."""

    code = "odd"

    def read(self, obj: Any) -> Reading:
        torch = sys.modules["torch"]
        if type(obj).__name__ == "DTensor":
            # It never travels; its pickle would be as large as this rank's part of a model.
            return Reading((tuple(obj.shape), id(obj)), [])
        if obj.layout is torch.sparse_coo:
            pieces = [obj._indices(), obj._values()]
        elif obj.layout in (torch.sparse_csr, torch.sparse_bsr):
            pieces = [obj.crow_indices(), obj.col_indices(), obj.values()]
        elif obj.layout in (torch.sparse_csc, torch.sparse_bsc):
            pieces = [obj.ccol_indices(), obj.row_indices(), obj.values()]
        elif obj.is_quantized:
            pieces = [obj.int_repr()]
        else:
            # Nested tensors, and those of libraries: only their pickles show what is in them.
            return Reading(digest(cloudpickle.dumps(obj)), [])
        digests = tuple(tensor_digest(piece.cpu()) for piece in pieces)
        return Reading((obj.layout, tuple(obj.shape), digests), [])

    def fits(self, before: Reading, now: Reading) -> bool:
        return False


def tensor_digest(tensor: Any) -> bytes:
    """Return the digest of the content of a tensor on the CPU."""
    flat = tensor.detach().reshape(-1).clone()
    return digest(memory_of(flat.untyped_storage())) if flat.numel() else b""


class Memory(Aspect):
    """The bytes of a tensor's storage, on any device."""

    code = "memory"
    late = True

    def read(self, obj: Any) -> Reading:
        on_cpu = obj.cpu()
        return Reading((obj.nbytes(), digest(memory_of(on_cpu)) if obj.nbytes() else b""), [])

    def current(self, obj: Any) -> Any:
        return StorageBytes(obj)

    def refuses(self, obj: Any, delta: Any) -> str:
        return "" if obj.nbytes() == len(delta) else "has another size here"

    def write(self, obj: Any, delta: Any) -> None:
        torch = sys.modules["torch"]
        target = torch.empty(0, dtype=torch.uint8, device=obj.device).set_(obj)
        target.copy_(torch.frombuffer(delta, dtype=torch.uint8))


class StorageBytes:
    """Pickles as the bytes of a storage, without copying them."""

    def __init__(self, storage: Any) -> None:
        self._storage = storage

    def __reduce__(self) -> tuple[Any, ...]:
        self._on_cpu = self._storage.cpu()
        return bytearray, (pickle.PickleBuffer(memory_of(self._on_cpu)),)


def memory_of(storage: Any) -> Any:
    """Return a view of the bytes of a storage on the CPU. The caller must keep the storage alive.

    It does not use numpy: a storage that was shared with numpy can no longer be resized.
    """
    return (ctypes.c_char * storage.nbytes()).from_address(storage.data_ptr() or 1)
