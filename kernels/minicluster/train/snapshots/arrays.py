"""Arrays of NumPy, JAX, TensorFlow and Keras in a snapshot, and JAX's trees of them.

An array is saved as bytes with its type and shape, so that a snapshot can be read without its framework. No
framework is imported here: an object of one is only there if the cell has imported it.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from minicluster.errors import MiniclusterError

NUMPY, JAX, JAX_KEY, TENSORFLOW, KERAS = "numpy", "jax", "jax-key", "tensorflow", "keras"
_SMALL_BYTES = 64 << 10
"""Smaller arrays are in the pickle with the rest: a tensor of its own would cost more than it saves."""
_NUMBERS = (bool, int, float, complex, np.generic)
PLAIN = (str, bytes, type(None), *_NUMBERS)
"""Values without parts: most of a history of losses. They are looked at first, since there may be many."""
_SHARDED = (
    "is divided among processes: mc.checkpoint() saves only what each rank has whole.",
    "Gather it first, on all ranks: jax.experimental.multihost_utils.process_allgather(x, tiled=True).",
)


class SnapshotImpossible(MiniclusterError):
    """The cell's training state cannot be saved in a snapshot, or not be restored from it."""


@dataclass(frozen=True)
class HeldArray:
    """Placeholder for an array whose bytes are a tensor of the snapshot. more: what its kind needs."""

    key: str
    dtype: Any
    shape: tuple[int, ...]
    kind: str
    more: str = ""


@dataclass(frozen=True)
class LoadedArray:
    """An array's content, before the object of its framework is made again."""

    content: Any
    kind: str
    more: str = ""


@dataclass(frozen=True)
class Record:
    """A named tuple: its class, and its items."""

    kind: Any
    items: list[Any]


@dataclass(frozen=True)
class Tree:
    """An object that JAX takes apart by itself (a TrainState, a module): its leaves, and where they are.

    What is no array and no number is no part of the state: there stands None.
    """

    kind: str
    paths: list[str]
    leaves: list[Any]


def content_of(path: str, value: Any) -> LoadedArray | None:
    """Return an array's content; None for an object that is none. Raises SnapshotImpossible."""
    if type(value) is np.ndarray:
        return None if value.dtype.hasobject else LoadedArray(value, NUMPY)
    if _is_of("jax", ("Array",), value):
        return _of_jax(path, value)
    if _is_of("keras", ("Variable",), value):
        return LoadedArray(np.asarray(sys.modules["keras"].ops.convert_to_numpy(value)), KERAS)
    if _is_of("tensorflow", ("Tensor", "Variable"), value) and callable(getattr(value, "numpy", None)):
        return LoadedArray(np.asarray(value.numpy()), TENSORFLOW)
    return None


def held(path: str, found: LoadedArray, tensors: dict[str, torch.Tensor]) -> Any:
    """Return what stands for an array in the pickle; a large one becomes one of the tensors."""
    content = found.content
    if content.nbytes < _SMALL_BYTES:
        return content if found.kind == NUMPY else found
    flat = np.ascontiguousarray(content).reshape(-1).view(np.uint8)
    with warnings.catch_warnings():
        # The arrays of JAX are read-only, and are only read here.
        warnings.simplefilter("ignore")
        tensors[path] = torch.from_numpy(flat)
    return HeldArray(path, content.dtype, content.shape, found.kind, found.more)


def loaded(one: HeldArray, tensor: torch.Tensor) -> LoadedArray:
    """Return the content of an array that is one of the snapshot's tensors."""
    return LoadedArray(tensor.numpy().view(one.dtype).reshape(one.shape), one.kind, one.more)


def _is_of(module: str, names: Sequence[str], value: Any) -> bool:
    kinds = (getattr(sys.modules.get(module), name, None) for name in names)
    return any(isinstance(value, kind) for kind in kinds if kind is not None)


def _of_jax(path: str, array: Any) -> LoadedArray:
    jax = sys.modules["jax"]
    if not (array.is_fully_addressable or array.is_fully_replicated):
        raise SnapshotImpossible(f"{path} {_SHARDED[0]}", _SHARDED[1])
    if jax.dtypes.issubdtype(array.dtype, jax.dtypes.prng_key):
        data, name = jax.random.key_data(array), str(jax.random.key_impl(array))
        return LoadedArray(np.asarray(data), JAX_KEY, name)
    return LoadedArray(np.asarray(array), JAX)


# Trees.


def parts_of(path: str, value: Any, walk: Callable[[str, Any], Any]) -> Record | Tree | None:
    """Take apart a named tuple, or an object of a class that JAX knows as a tree; None for others.

    walk: takes apart what is within it.
    """
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        items = zip(value._fields, value, strict=True)  # type: ignore[attr-defined]
        return Record(type(value), [walk(f"{path}.{name}", item) for name, item in items])
    tree = _tree_util()
    if tree is None or tree.all_leaves([value]):
        return None
    leaves, _ = tree.tree_flatten_with_path(value)
    paths = [tree.keystr(where) for where, _ in leaves]
    found = [_leaf(f"{path}{where}", leaf, walk) for where, (_, leaf) in zip(paths, leaves, strict=True)]
    return Tree(type(value).__name__, paths, found)


def leaves_of(value: Any) -> list[Any]:
    """Return the leaves of an object that JAX knows as a tree; none of others."""
    tree = _tree_util()
    return [] if tree is None or tree.all_leaves([value]) else tree.tree_leaves(value)


def _tree_util() -> Any:
    return getattr(sys.modules.get("jax"), "tree_util", None)


def _leaf(path: str, leaf: Any, walk: Callable[[str, Any], Any]) -> Any:
    is_state = isinstance(leaf, (torch.Tensor, *_NUMBERS)) or content_of(path, leaf) is not None
    return walk(path, leaf) if is_state else None


def put_onto(path: str, there: Any, saved: Any) -> Any:
    """Make an object again from what was saved of it, in the place of one that is there (None: of none)."""
    if isinstance(saved, LoadedArray):
        return _array_again(there, saved)
    if isinstance(saved, Tree):
        return _tree_again(path, there, saved)
    if isinstance(saved, Record):
        return saved.kind(*_each(path, there, saved.items))
    if isinstance(saved, dict):
        known: dict[Any, Any] = there if isinstance(there, dict) else {}
        return {key: put_onto(f"{path}.{key}", known.get(key), part) for key, part in saved.items()}
    if type(saved) in (list, tuple):
        return type(saved)(_each(path, there, saved))
    return saved


def _each(path: str, there: Any, saved: Sequence[Any]) -> list[Any]:
    known: Sequence[Any] = there if isinstance(there, list | tuple) else ()
    return [
        put_onto(f"{path}.{number}", known[number] if number < len(known) else None, part)
        for number, part in enumerate(saved)
    ]


def _tree_again(path: str, there: Any, saved: Tree) -> Any:
    """Fill the tree that is there with the saved leaves. Its structure and functions are the cell's."""
    tree = _tree_util()
    if tree is None or there is None:
        raise SnapshotImpossible(
            f"mc.resume() needs {path} to fill it: a {saved.kind} is saved as its arrays alone.",
            "Give mc.resume() the state as it is before the first step.",
        )
    leaves, structure = tree.tree_flatten_with_path(there)
    paths = [tree.keystr(where) for where, _ in leaves]
    if paths != saved.paths:
        differing = sorted({*paths} ^ {*saved.paths})[:3] or ["the order of its parts"]
        raise SnapshotImpossible(
            f"{path} has another structure than in the snapshot: {', '.join(differing)}.",
            "Build the same model, with the same optimizer, before mc.resume().",
        )
    again = [
        leaf if part is None else put_onto(f"{path}{where}", leaf, part)
        for where, (_, leaf), part in zip(paths, leaves, saved.leaves, strict=True)
    ]
    return tree.tree_unflatten(structure, again)


def _array_again(there: Any, saved: LoadedArray) -> Any:
    jax = sys.modules.get("jax")
    if jax is not None and saved.kind == JAX:
        return _jax_again(jax, there, saved.content)
    if jax is not None and saved.kind == JAX_KEY:
        return jax.random.wrap_key_data(jax.numpy.asarray(saved.content), impl=saved.more)
    if callable(getattr(there, "assign", None)):
        there.assign(saved.content)
        return there
    if saved.kind == TENSORFLOW and (tensorflow := sys.modules.get("tensorflow")):
        return tensorflow.constant(saved.content)
    return np.array(saved.content)


def _jax_again(jax: Any, there: Any, content: Any) -> Any:
    """Make an array of JAX, on the devices of the one that is there; if it is free to move, so is this."""
    sharding = getattr(there, "sharding", None)
    if sharding is None or there.shape != content.shape or not getattr(there, "committed", True):
        return jax.numpy.asarray(content)
    with suppress(ValueError):  # It was made for other devices than there are now.
        return jax.make_array_from_callback(content.shape, sharding, lambda index: content[index])
    return jax.numpy.asarray(content)
