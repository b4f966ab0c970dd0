"""How torch's tensors are pickled: through the CPU, each storage once, without importing torch."""

from __future__ import annotations

import ctypes
import pickle
import sys
from typing import Any

from minicluster.pickling.parts import Fixed


class TensorReducer:
    """Reduces objects that torch itself would pickle with their device, or with a process group.

    torch reduces the tensors, this class their storages. A storage that several tensors share is
    written once, so that views stay views. A storage on a GPU is written as one on the CPU.
    """

    def __init__(self) -> None:
        torch = sys.modules.get("torch")
        self._typed_storage = getattr(getattr(torch, "storage", None), "TypedStorage", None)
        self._untyped_storage = getattr(torch, "UntypedStorage", None)
        self._tensor = getattr(torch, "Tensor", None)
        self._parameter = getattr(getattr(torch, "nn", None), "Parameter", None)
        # float8 and others: torch's own unpickling cannot read them.
        self._new_dtypes = torch.storage._new_dtypes() if torch is not None else set()
        parallel = sys.modules.get("torch.nn.parallel.distributed")
        self._wrapper = getattr(parallel, "DistributedDataParallel", None)
        self._stored: dict[int, StoredTensorStorage] = {}

    def reduce(self, obj: Any) -> tuple[Any, ...] | None:
        """Return what `__reduce__` should return; None for objects that are pickled elsewhere."""
        kind = type(obj)
        if kind is self._typed_storage:
            return typed_storage, (self.once(obj._untyped_storage), str(obj.dtype))
        if (
            kind is self._tensor
            and obj.dtype in self._new_dtypes
            and obj.layout is sys.modules["torch"].strided
        ):
            place = (obj.storage_offset(), tuple(obj.shape), obj.stride(), obj.requires_grad)
            return new_tensor, (self.once(obj.untyped_storage()), str(obj.dtype), *place)
        if kind is self._untyped_storage:
            return itself, (self.once(obj),)
        if kind is self._parameter and obj.layout is sys.modules["torch"].strided:
            self.once(obj.untyped_storage()).fixed = True
        if self._wrapper is not None and issubclass(kind, self._wrapper):
            return itself, (obj.module,)
        return None

    def know(self, stored: StoredTensorStorage) -> None:
        """Let this object stand for its storage in the pickle."""
        self._stored[stored.storage._cdata] = stored

    def once(self, untyped: Any) -> StoredTensorStorage:
        """Return the object that stands for a storage in this pickle, the same each time."""
        # The entry keeps the storage alive, so that no other storage gets its address.
        return self._stored.setdefault(untyped._cdata, StoredTensorStorage(untyped))


class StoredTensorStorage:
    """Stands for a storage in a pickle: one object for each storage, so that the pickler's memo finds it.

    fixed: whether it belongs to a parameter: such a storage is never resized.
    """

    def __init__(self, untyped: Any) -> None:
        self.storage = untyped
        self.fixed = False

    def __reduce__(self) -> tuple[Any, ...]:
        self._on_cpu = self.storage.cpu()
        view = (ctypes.c_char * self._on_cpu.nbytes()).from_address(self._on_cpu.data_ptr() or 1)
        # The view alone would not keep the memory alive.
        view.storage = self._on_cpu
        view.fixed = self.fixed
        return untyped_storage, (pickle.PickleBuffer(view),)


def itself(value: Any) -> Any:
    return value


def untyped_storage(data: bytes | bytearray | memoryview | Fixed) -> Any:
    """Make a storage on the CPU with these bytes. Unless fixed, it owns its memory and can be resized."""
    import torch

    if isinstance(data, Fixed):
        return torch.frombuffer(data.memory, dtype=torch.uint8).untyped_storage()
    if not len(data):
        return torch.UntypedStorage(0)
    memory = torch.empty(len(data), dtype=torch.uint8)
    memory.copy_(torch.frombuffer(data, dtype=torch.uint8))
    return memory.untyped_storage()


def typed_storage(untyped: Any, dtype: str) -> Any:
    import torch

    kind = getattr(torch, dtype.removeprefix("torch."))
    return torch.storage.TypedStorage(wrap_storage=untyped, dtype=kind, _internal=True)


def new_tensor(
    untyped: Any, dtype: str, offset: int, shape: tuple[int, ...], strides: tuple[int, ...], gradient: bool
) -> Any:
    import torch

    made = torch.empty(0, dtype=getattr(torch, dtype.removeprefix("torch.")), device=untyped.device)
    return made.set_(untyped, offset, shape, strides).requires_grad_(gradient)
