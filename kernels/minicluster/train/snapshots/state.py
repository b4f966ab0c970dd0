"""Splits a training's state into tensors and the rest, and restores it."""

from __future__ import annotations

import io
import math
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

from minicluster.train.calls import WrongCall
from minicluster.train.snapshots import arrays
from minicluster.train.snapshots.arrays import HeldArray, Record, SnapshotImpossible, Tree
from minicluster.train.strategies.divided import StagedModel, divided_of, is_part

__all__ = ["Parts", "SnapshotImpossible"]

_WEIGHTS, _VARIABLES = "minicluster weights", "minicluster variables"
"""Keys of what stands for an object of Keras."""
_FLOAT_BYTES = 4


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
                    f"{path} is divided among ranks: only what mc.prepare() has divided can be saved.",
                    'Take mc.prepare(model, optimizer, strategy="fsdp") and mc.checkpoint(model, optimizer, '
                    "step=step), or torch.distributed.checkpoint with a folder that all nodes share.",
                )
            self.tensors[path] = value.detach()
            return Held(path)
        if isinstance(value, dict):
            return {
                key: self._walk(f"{path}.{key}" if path else str(key), part) for key, part in value.items()
            }
        if type(value) in (list, tuple):
            return type(value)(self._walk(f"{path}.{number}", part) for number, part in enumerate(value))
        return self._walk_array(path, value)

    def _walk_array(self, path: str, value: Any) -> Any:
        if isinstance(value, arrays.PLAIN):
            return value
        found = arrays.content_of(path, value)
        if found is not None:
            return arrays.held(path, found, self.tensors)
        taken_apart = arrays.parts_of(path, value, self._walk)
        return value if taken_apart is None else taken_apart


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
    """Join a split state. `rest` was pickled by the job itself. Arrays are made again by `put_back`."""

    def fill(value: Any) -> Any:
        if isinstance(value, Held):
            return tensors[value.key]
        if isinstance(value, HeldArray):
            return arrays.loaded(value, tensors[value.key])
        if isinstance(value, Record):
            return Record(value.kind, list(map(fill, value.items)))
        if isinstance(value, Tree):
            return Tree(value.kind, value.paths, list(map(fill, value.leaves)))
        if isinstance(value, dict):
            return {key: fill(part) for key, part in value.items()}
        if type(value) in (list, tuple):
            return type(value)(map(fill, value))
        return value

    return fill(pickle.loads(rest))  # noqa: S301 - see above


def plain_model(model: Any) -> Any:
    """Return the model without its wrappers for training; what is no module of torch as it is."""
    while isinstance(model, torch.nn.Module):
        inner = (
            model.module if isinstance(model, DistributedDataParallel) else getattr(model, "_orig_mod", None)
        )
        if inner is None:
            break
        model = inner
    return model


def check(named: Mapping[str, Any], call: str) -> None:
    """Refuse what cannot be saved, before a snapshot is due. call: a right one.

    Raises SnapshotImpossible; WrongCall if there is nothing to save.
    """
    parts = {name: part for name, part in named.items() if part is not None}
    if not parts:
        raise WrongCall("Neither a model nor another object was given.", f"Like this: {call}")
    of_divided = ("model", "optimizer") if divided_of(parts.get("model")) else ()
    for name, part in parts.items():
        if is_part(part) and name not in of_divided:
            raise SnapshotImpossible(
                f"{name} is divided among ranks: a snapshot takes one divided model, and its optimizer.",
                "They have the first places of mc.checkpoint(model, optimizer, step=step) and mc.resume().",
            )
        if not (isinstance(part, dict | list | StagedModel) or _has_state(part)):
            raise _not_saved(name, part)


def trained_model(model: Any) -> Any:
    """Return what a snapshot saves of: a pipeline, or the model without its wrappers."""
    return model if isinstance(model, StagedModel) else plain_model(model)


def state_of(name: str, part: Any) -> Any:
    """Return an object's state for a snapshot. `name`: its name in messages. Raises SnapshotImpossible."""
    if isinstance(part, dict | list):
        return part
    if callable(getattr(part, "state_dict", None)):
        return part.state_dict()
    if _has_weights(part):
        return {_WEIGHTS: list(part.get_weights())}
    if (variables := _variables(part)) is not None:
        return {_VARIABLES: variables}
    raise _not_saved(name, part)


def _not_saved(name: str, part: Any) -> SnapshotImpossible:
    return SnapshotImpossible(
        f"{name} ({type(part).__name__}) cannot be saved: it has no state_dict() and no variables.",
        "Put plain values, arrays and trees of JAX into a dict or a list, which mc.resume() fills again: "
        'state = {"params": params}; mc.checkpoint(state, step=step).',
    )


def _has_state(part: Any) -> bool:
    has_dict = callable(getattr(part, "state_dict", None))
    return has_dict or _has_weights(part) or _variables(part) is not None


def put_back(part: Any, state: Any, name: str = "state") -> None:
    """Restore an object from the state that `state_of` returned. Raises SnapshotImpossible."""
    if isinstance(part, dict):
        fresh = arrays.put_onto(name, part, state)
        part.clear()
        part.update(fresh)
    elif isinstance(part, list):
        part[:] = arrays.put_onto(name, part, state)
    elif callable(getattr(part, "load_state_dict", None)):
        part.load_state_dict(arrays.put_onto(name, None, state))
    elif _WEIGHTS in state:
        weights = arrays.put_onto(name, None, state[_WEIGHTS])
        _check_count(name, len(part.get_weights()), len(weights))
        part.set_weights(weights)
    else:
        variables = _variables(part) or []
        _check_count(name, len(variables), len(state[_VARIABLES]))
        arrays.put_onto(name, variables, state[_VARIABLES])


def size_bytes(part: Any) -> int:
    """Estimate the size of an object's state: cheap, and accurate enough to plan the first snapshot."""
    if isinstance(part, arrays.PLAIN):
        return 0
    if (divided := divided_of(part)) is not None:
        return size_bytes([*divided.parameters.values()])
    if isinstance(part, torch.nn.Module):
        return size_bytes([*part.parameters(), *part.buffers()])
    if isinstance(part, torch.optim.Optimizer):
        return size_bytes([*part.state.values()])
    if isinstance(part, dict):
        return sum(map(size_bytes, part.values()))
    if isinstance(part, list | tuple):
        return sum(map(size_bytes, part))
    here = getattr(part, "_local_tensor", part)
    if isinstance(size := getattr(here, "nbytes", None), int):
        return size
    if variables := _variables(part):
        return sum(_FLOAT_BYTES * math.prod(one.shape) for one in variables)
    return size_bytes(arrays.leaves_of(part))


def _has_weights(part: Any) -> bool:
    """Whether an object is a model or a layer of Keras."""
    return callable(getattr(part, "get_weights", None)) and callable(getattr(part, "set_weights", None))


def _variables(part: Any) -> list[Any] | None:
    """Return the variables of an object of Keras or TensorFlow (an optimizer, a metric); None of others."""
    found: Any = getattr(part, "variables", None)
    if not isinstance(found, list | tuple) or not all(hasattr(one, "assign") for one in found):
        return None
    return list(found)


def _check_count(name: str, there: int, saved: int) -> None:
    if there != saved:
        raise SnapshotImpossible(
            f"{name} has {there} variables, but {saved} in the snapshot.",
            "Build it before mc.resume(): a model by its first input, an optimizer by "
            "optimizer.build(model.trainable_variables).",
        )


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
