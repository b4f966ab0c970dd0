"""How much memory a virtual rank takes: its process, its tensors, and what of them is the model's."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch.optim import Optimizer
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from minicluster.dry_run.measured import Sizes, Traced

_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
_FORGET_PEAK = "5"
"""See proc(5): it sets the peak to the present size."""


def _status_bytes(name: str) -> int:
    for line in _STATUS.read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    return 0


class ProcessMemory:
    """By how much this process grows from now on; with a GPU, what torch's allocator takes of it."""

    def __init__(self) -> None:
        with suppress(OSError):
            _CLEAR.write_text(_FORGET_PEAK)
        self.base_bytes = _status_bytes("VmRSS")
        if torch.cuda.is_available():
            torch.cuda.reset_peak_memory_stats()

    @property
    def growth_bytes(self) -> int:
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            return torch.cuda.max_memory_reserved()
        return max(0, _status_bytes("VmHWM") - self.base_bytes)


def sizes_of(optimizers: Iterable[Optimizer]) -> Sizes:
    """Return the sizes of all modules' weights, and of what the optimizers hold."""
    optimizers = list(optimizers)
    trained = [
        weight for optimizer in optimizers for group in optimizer.param_groups for weight in group["params"]
    ]
    states = [value for optimizer in optimizers for state in optimizer.state.values() for value in _of(state)]
    return Sizes(
        weights=_bytes([*trained, *_module_tensors()]),
        gradients=_bytes(weight.grad for weight in trained if weight.grad is not None),
        optimizer=_bytes(states),
    )


def _of(state: Any) -> Iterator[torch.Tensor]:
    return (leaf for leaf in tree_leaves(state) if isinstance(leaf, torch.Tensor))


def _module_tensors() -> Iterator[torch.Tensor]:
    for found in gc.get_objects():
        if issubclass(type(found), torch.nn.Module):
            # A module that is being made may lack all of them.
            for tensors in (vars(found).get("_parameters"), vars(found).get("_buffers")):
                yield from (tensor for tensor in (tensors or {}).values() if tensor is not None)


def _bytes(tensors: Iterable[torch.Tensor]) -> int:
    """Return the bytes of the tensors, each counted once."""
    by_place = {(one.device, one.data_ptr(), one.nbytes): one.nbytes for one in tensors if one.nbytes}
    return sum(by_place.values())


class LiveTensors(TorchDispatchMode):
    """Counts the bytes of all tensors that live, whatever their device, from the operations that make them.

    What a kernel takes and gives back within an operation is not seen.
    """

    def __init__(self) -> None:
        super().__init__()
        self.live_bytes = self.peak_bytes = 0
        self._sizes: dict[int, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor):
                self.see(leaf)
        return result

    def see_all(self) -> None:
        """Count the tensors that are there already."""
        for found in gc.get_objects():
            if issubclass(type(found), torch.Tensor):
                self.see(found)

    def see(self, tensor: torch.Tensor) -> None:
        try:
            storage = tensor.untyped_storage()
        except (NotImplementedError, RuntimeError):
            return  # A sparse tensor, or a wrapper, has none; its parts are seen.
        key, size = storage._cdata, storage.nbytes()
        if key in self._sizes:
            return
        self._sizes[key] = size
        self.live_bytes += size
        self.peak_bytes = max(self.peak_bytes, self.live_bytes)
        weakref.finalize(storage, self._gone, key).atexit = False

    def _gone(self, key: int) -> None:
        self.live_bytes -= self._sizes.pop(key, 0)

    def begin_step(self) -> None:
        self.peak_bytes = self.live_bytes

    @property
    def traced(self) -> Traced:
        return Traced(peak=self.peak_bytes, left=self.live_bytes)
