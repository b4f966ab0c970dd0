"""What arrays, tensors and their storages consist of, and how content gets into the notebook's own."""

from __future__ import annotations

import ctypes
import pickle
import sys
from collections.abc import Callable
from typing import Any

from cloudpickle import cloudpickle

from minicluster.changes.aspects import Aspect, Look, Moved, Undo
from minicluster.changes.digest import digest
from minicluster.pickling.rebuilding import ArrayContent


class Elements(Aspect):
    """Of a numpy array. One that is a view has its content in the array that owns it.

    owned: tells whether that one is tracked itself.
    """

    code = "elements"
    late = True

    def __init__(self, owned: Callable[[object], bool]) -> None:
        self._owned = owned

    def look(self, obj: Any) -> Look:
        facts = (obj.shape, obj.strides, obj.dtype.str, obj.dtype.names, obj.flags.writeable)
        if obj.dtype.hasobject:
            # Records as tuples: as objects they are others at each look.
            return Look(facts, obj.ravel(order="K").tolist())
        owner = owner_of(obj)
        return Look((facts, None if owner is not obj and self._owned(owner) else _content_of(obj)), [])

    def fits(self, before: Look, now: Look) -> bool:
        return _shape(before) == _shape(now)

    def state(self, obj: Any, before: Look, now: Look, moved: Moved) -> Any:
        return ArrayContent(obj)

    def refuses(self, obj: Any, state: Any) -> str:
        if not obj.flags.writeable:
            return "is read-only here"
        return "" if obj.shape == state.shape and obj.dtype == state.dtype else "has another shape here"

    def put(self, obj: Any, state: Any) -> Undo:
        obj[...] = state
        if _is_masked(obj):
            obj.fill_value = state.fill_value
        return _nothing


class Record(Aspect):
    """Of one element of a structured numpy array, whose memory it shows."""

    code = "record"
    late = True

    def look(self, obj: Any) -> Look:
        if obj.dtype.hasobject:
            return Look(str(obj.dtype), [*obj.item()])
        return Look((str(obj.dtype), digest(obj.tobytes())), [])

    def state(self, obj: Any, before: Look, now: Look, moved: Moved) -> Any:
        return sys.modules["numpy"].array(obj)

    def refuses(self, obj: Any, state: Any) -> str:
        return "" if obj.flags.writeable else "is read-only here"

    def put(self, obj: Any, state: Any) -> Undo:
        for name in obj.dtype.names or ():
            obj[name] = state[()][name]
        return _nothing


def _is_masked(array: Any) -> bool:
    return isinstance(array, sys.modules["numpy"].ma.MaskedArray)


def _content_of(array: Any) -> tuple[bytes, ...]:
    numpy = sys.modules["numpy"]
    more = [array.mask, array.fill_value] if _is_masked(array) else []
    # As bytes: dates have no buffer. Any order of memory will do, as long as it is each time the same.
    planes = (numpy.asarray(plane).ravel(order="K") for plane in (array, *more))
    return tuple(digest(plane.view(numpy.uint8)) if plane.size else b"" for plane in planes)


def _shape(look: Look) -> Any:
    return look.facts[0] if len(look.facts) == 2 else look.facts


def owner_of(array: Any) -> Any:
    """Return the array that owns the memory of a view, or the array itself."""
    numpy = sys.modules["numpy"]
    while type(array.base) is numpy.ndarray:
        array = array.base
    return array


class Geometry(Aspect):
    """Of a strided tensor: which part of which storage it is. number: of the storages both sides have."""

    code = "geometry"

    def __init__(self, number: Callable[[Any], int | None]) -> None:
        self._number = number

    def look(self, obj: Any) -> Look:
        storage = obj.untyped_storage()
        number = self._number(storage)
        where = ("known", number) if number is not None else ("new", storage._cdata, storage.data_ptr())
        shape = (obj.dtype, tuple(obj.shape), obj.stride(), obj.storage_offset(), obj.requires_grad)
        return Look((where, shape), [])

    def state(self, obj: Any, before: Look, now: Look, moved: Moved) -> Any:
        return obj.detach().as_subclass(sys.modules["torch"].Tensor), obj.requires_grad

    def put(self, obj: Any, state: Any) -> Undo:
        old = obj.data, obj.requires_grad
        _set_tensor(obj, *state)
        return lambda: _set_tensor(obj, *old)


def _set_tensor(tensor: Any, data: Any, requires_grad: bool) -> None:
    if data.device != tensor.device:
        data = data.to(tensor.device)
    if tensor.is_leaf:
        # A dtype without gradients is refused while the tensor wants some.
        tensor.requires_grad_(False)
        tensor.data = data
        tensor.requires_grad_(requires_grad)
    else:
        tensor.data = data


class Odd(Aspect):
    """Of a tensor that is no strided one (sparse, quantized): it is brought as a whole, in a new object."""

    code = "odd"

    def look(self, obj: Any) -> Look:
        torch = sys.modules["torch"]
        if obj.layout is torch.sparse_coo:
            pieces = [obj._indices(), obj._values()]
        elif obj.layout in (torch.sparse_csr, torch.sparse_bsr):
            pieces = [obj.crow_indices(), obj.col_indices(), obj.values()]
        elif obj.layout in (torch.sparse_csc, torch.sparse_bsc):
            pieces = [obj.ccol_indices(), obj.row_indices(), obj.values()]
        elif obj.is_quantized:
            pieces = [obj.int_repr()]
        else:
            # Nested ones, and those of libraries: only their pickles say what is in them.
            return Look(digest(cloudpickle.dumps(obj)), [])
        return Look((obj.layout, tuple(obj.shape), tuple(map(_digest_of, pieces))), [])

    def fits(self, before: Look, now: Look) -> bool:
        return False


def _digest_of(tensor: Any) -> bytes:
    flat = tensor.detach().cpu().contiguous().view(-1)
    copy = flat.clone()
    return digest(memory_of(copy.untyped_storage())) if flat.numel() else b""


class Memory(Aspect):
    """Of a tensor's storage: its bytes, wherever they are."""

    code = "memory"
    late = True

    def look(self, obj: Any) -> Look:
        on_cpu = obj.cpu()
        return Look((obj.nbytes(), digest(memory_of(on_cpu)) if obj.nbytes() else b""), [])

    def state(self, obj: Any, before: Look, now: Look, moved: Moved) -> Any:
        return StorageBytes(obj)

    def refuses(self, obj: Any, state: Any) -> str:
        return "" if obj.nbytes() == len(state) else "has another size here"

    def put(self, obj: Any, state: Any) -> Undo:
        torch = sys.modules["torch"]
        target = torch.empty(0, dtype=torch.uint8, device=obj.device).set_(obj)
        target.copy_(torch.frombuffer(state, dtype=torch.uint8))
        return _nothing


class StorageBytes:
    """Pickles as the bytes of a storage, without a copy of them."""

    def __init__(self, storage: Any) -> None:
        self._storage = storage

    def __reduce__(self) -> tuple[Any, ...]:
        self._on_cpu = self._storage.cpu()
        return bytearray, (pickle.PickleBuffer(memory_of(self._on_cpu)),)


def memory_of(storage: Any) -> Any:
    """Return a view of the bytes of a storage of the CPU, which has to be kept alive.

    Not by numpy: a storage that numpy has seen cannot be resized any more.
    """
    return (ctypes.c_char * storage.nbytes()).from_address(storage.data_ptr() or 1)


def _nothing() -> None:
    """Take nothing back: late content is put when nothing can fail any more."""
