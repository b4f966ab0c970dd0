"""Splits a training's state into tensors and the rest, and restores it."""

from __future__ import annotations

import io
import pickle
import random
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from torch.distributed.checkpoint.default_planner import _EmptyStateDictLoadPlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter, _StorageInfo
from torch.distributed.checkpoint.state_dict_loader import _load_state_dict
from torch.distributed.checkpoint.state_dict_saver import save
from torch.nn.parallel import DistributedDataParallel

from minicluster.errors import MiniclusterError
from minicluster.train.strategies.divided import StagedModel


class SnapshotImpossible(MiniclusterError):
    """The cell's training state cannot be saved in a snapshot."""


@dataclass(frozen=True)
class Held:
    """Placeholder for a tensor."""

    key: str


class Parts:
    """A split state. `tensors` are the live tensors until `stage` has copied them to the CPU."""

    def __init__(self, state: Mapping[str, Any]) -> None:
        self.tensors: dict[str, torch.Tensor] = {}
        rest = self._walk("", state)
        try:
            self.rest = pickle.dumps(rest)
        except Exception as error:
            raise SnapshotImpossible(f"A part of the state cannot be pickled: {error}.") from error

    @property
    def size_bytes(self) -> int:
        return len(self.rest) + sum(tensor.nbytes for tensor in self.tensors.values())

    def _walk(self, path: str, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            if type(value).__name__ in ("DTensor", "ShardedTensor"):
                raise SnapshotImpossible(
                    f"{path} is divided among ranks, and not by mc.prepare(): this cannot be saved.",
                    'Divide the model by mc.prepare(model, optimizer, strategy="fsdp"), or use '
                    "torch.distributed.checkpoint with a folder that all nodes share.",
                )
            self.tensors[path] = value.detach()
            return Held(path)
        if isinstance(value, dict):
            return {
                key: self._walk(f"{path}.{key}" if path else str(key), part) for key, part in value.items()
            }
        if type(value) in (list, tuple):
            return type(value)(self._walk(f"{path}.{number}", part) for number, part in enumerate(value))
        return value


class StagingBuffers:
    """CPU buffers that each snapshot reuses: allocating memory takes longer than copying."""

    def __init__(self) -> None:
        self._copies: dict[str, torch.Tensor] = {}

    def copy(self, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        copies = {key: self._copy(key, tensor) for key, tensor in tensors.items()}
        if any(tensor.is_cuda for tensor in tensors.values()):
            torch.cuda.synchronize()
        self._copies = copies
        return copies

    def _copy(self, key: str, tensor: torch.Tensor) -> torch.Tensor:
        there = self._copies.get(key)
        if there is None or (there.shape, there.dtype) != (tensor.shape, tensor.dtype):
            there = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
        return there.copy_(tensor, non_blocking=True)


def put_together(rest: bytes, tensors: Mapping[str, torch.Tensor]) -> dict[str, Any]:
    """Join a split state. `rest` was pickled by the job itself."""

    def fill(value: Any) -> Any:
        if isinstance(value, Held):
            return tensors[value.key]
        if isinstance(value, dict):
            return {key: fill(part) for key, part in value.items()}
        if type(value) in (list, tuple):
            return type(value)(map(fill, value))
        return value

    return fill(pickle.loads(rest))  # noqa: S301 - see above


def plain_model(model: torch.nn.Module) -> torch.nn.Module:
    """Return the model without its wrappers for training. Raises SnapshotImpossible."""
    if not isinstance(model, torch.nn.Module):
        raise SnapshotImpossible(
            f"A snapshot is that of a model (torch.nn.Module), not of {type(model).__name__}.",
            "mc.checkpoint(model, optimizer, loader, step=step), and mc.resume() with the same.",
        )
    while True:
        inner = (
            model.module if isinstance(model, DistributedDataParallel) else getattr(model, "_orig_mod", None)
        )
        if inner is None:
            return model
        model = inner


def trained_model(model: Any) -> Any:
    """Return what a snapshot saves of: a pipeline, or the model without its wrappers.

    Raises SnapshotImpossible.
    """
    return model if isinstance(model, StagedModel) else plain_model(model)


def state_of(name: str, part: Any) -> Any:
    """Return an object's state for a snapshot. `name`: its name in messages. Raises SnapshotImpossible."""
    if isinstance(part, dict | list):
        return part
    if not callable(getattr(part, "state_dict", None)):
        raise SnapshotImpossible(
            f"{name} ({type(part).__name__}) cannot be saved: it has no state_dict().",
            "Put plain values into a dict or a list, which mc.resume() fills again.",
        )
    return part.state_dict()


def put_back(part: Any, state: Any) -> None:
    """Restore an object from the state that `state_of` returned."""
    if isinstance(part, dict):
        part.clear()
        part.update(state)
    elif isinstance(part, list):
        part[:] = state
    else:
        part.load_state_dict(state)


def random_states() -> dict[str, Any]:
    """Return this rank's random states."""
    states = {
        "python": random.getstate(),
        "numpy": np.random.get_state(),
        "torch": torch.get_rng_state().numpy(),
    }
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        states["cuda"] = torch.cuda.get_rng_state().numpy()
    return states


def set_random_states(states: Mapping[str, Any]) -> None:
    random.setstate(states["python"])
    np.random.set_state(states["numpy"])
    torch.set_rng_state(torch.from_numpy(states["torch"]))
    if "cuda" in states and torch.cuda.is_available():
        torch.cuda.set_rng_state(torch.from_numpy(states["cuda"]))


# A state as files of torch.distributed.checkpoint; each node writes and reads a full copy.


REST = "minicluster"
"""The key of the part without tensors."""


class WholeTensorReader(FileSystemReader):
    """Reads each tensor in one read: torch's reader makes many small reads and takes milliseconds."""

    def _slice_file(self, file: IO[bytes], sinfo: _StorageInfo) -> IO[bytes]:
        file.seek(sinfo.offset)
        return io.BytesIO(file.read(sinfo.length))


def write_files(folder: Path, tensors: Mapping[str, torch.Tensor], rest: bytes) -> None:
    """Write a state into a folder."""
    # No fsync: the files are in the node's memory, which is lost with the node anyway.
    writer = FileSystemWriter(folder, sync_files=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        save({**tensors, REST: rest}, storage_writer=writer, no_dist=True)


def read_files(folder: Path) -> tuple[dict[str, torch.Tensor], bytes]:
    """Return the tensors and the rest that `write_files` wrote."""
    state: dict[str, Any] = {}
    _load_state_dict(state, WholeTensorReader(folder), planner=_EmptyStateDictLoadPlanner(), no_dist=True)
    rest = state.pop(REST)
    return state, rest
