"""Pickles between the notebook and the ranks: one for all names, so that shared objects stay shared.

Functions and classes of the notebook are sent by value. Their globals are the notebook's namespace on one
side and the rank's namespace on the other. The namespace itself is never pickled, only a mark for it. The
globals that a function reads are sent along if the other side lacks them.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from minicluster.changes.shared_objects import SharedObjects
from minicluster.errors import MiniclusterError
from minicluster.pickling.parts import OutOfBandPickle, PartsFile, PicklePart, inline_parts
from minicluster.pickling.pickler import (
    ANY_TARGET,
    Carry,
    CountingFile,
    LimitedFile,
    NotebookPickler,
    TargetLimits,
    TooLarge,
)
from minicluster.pickling.rebuilding import arrays_in
from minicluster.pickling.refusal import reason_of, type_name
from minicluster.pickling.sizes import readable_size
from minicluster.pickling.unpickling import (
    ForeignCode,
    MissingModule,
    NotebookUnpickler,
    load,
    loads,
    no_collection,
)

__all__ = [
    "ANY_TARGET",
    "DEFAULT_LIMIT_BYTES",
    "Culprit",
    "ForeignCode",
    "MissingModule",
    "NotPicklable",
    "Packed",
    "TargetLimits",
    "dumps",
    "load",
    "load_shared",
    "loads",
    "pack_names",
    "parts_of",
    "readable_size",
]

DEFAULT_LIMIT_BYTES = 1 << 30


@dataclass(frozen=True)
class Culprit:
    """A name that cannot be sent, and why."""

    name: str
    type_name: str
    size_bytes: int
    reason: str

    def __str__(self) -> str:
        return f"`{self.name}` ({self.type_name}, {readable_size(self.size_bytes)}) {self.reason}"


@dataclass(frozen=True)
class Packed:
    """Names that were pickled.

    data: the pickle without its parts. modules, files: see NotebookPickler. shared: objects that both sides
    have once the pickle is loaded.
    """

    data: bytes
    parts: tuple[PicklePart, ...]
    modules: frozenset[str]
    files: frozenset[str]
    shared: SharedObjects


class NotPicklable(MiniclusterError):
    """Names that cannot be sent; nothing was started."""

    def __init__(self, culprits: tuple[Culprit, ...], what: str, hint: str) -> None:
        lines = "".join(f"\n  - {culprit}" for culprit in culprits)
        super().__init__(f"{what} cannot be sent, nothing was started:{lines}", hint)
        self.culprits = culprits


def dumps(
    names: Mapping[str, Any], namespace: dict[str, Any], what: str, limit_bytes: int = DEFAULT_LIMIT_BYTES
) -> bytes:
    """Pickle names of the notebook into one blob.

    namespace: the notebook's; functions whose globals it is get the other side's namespace there.
    what: the subject of the error's sentence, for example "The names of this cell".
    Raises NotPicklable, with the name, type and size of each culprit and the reason.
    """
    packed = pack_names(names, namespace, what, limit_bytes)
    return inline_parts(packed.data, ((part.at, part.data) for part in packed.parts))


def pack_names(
    names: Mapping[str, Any],
    namespace: dict[str, Any],
    what: str,
    limit_bytes: int = DEFAULT_LIMIT_BYTES,
    target: TargetLimits = ANY_TARGET,
) -> Packed:
    """Pickle as `dumps` for a reading process with these limits; return also what was found on the way."""
    kept = PartsFile()
    pickler = NotebookPickler(LimitedFile(limit_bytes, kept), namespace, _all, target)
    pickler.links = {id(array): True for array in arrays_in(names.values())}
    try:
        pickler.dump(dict(names))
    except Exception as error:
        # An object's own __reduce__ may raise anything.
        raise _refusal(names, namespace, what, limit_bytes, target, error) from None
    modules = frozenset(pickler.modules)
    files = frozenset(pickler.files)
    memo = pickler.memo.copy()
    pickler.clear_memo()
    del pickler
    return Packed(kept.small, tuple(kept.parts), modules, files, SharedObjects.of_pickler(memo))


def parts_of(value: Any, namespace: dict[str, Any]) -> tuple[PicklePart, ...]:
    """Return the parts of one value that is sent."""
    return pack_names({"_": value}, namespace, "A name", sys.maxsize).parts


def load_shared(
    names: OutOfBandPickle, shared: bytes, namespace: dict[str, Any], foreign: bool
) -> tuple[dict[str, Any], SharedObjects]:
    """Unpickle names as `loads`; return also the objects that both sides have.

    shared: see `SharedObjects.shared`.
    """
    with no_collection():
        given, memo = _load_with_memo(names, namespace, foreign)
        return given, SharedObjects.of_unpickler(memo, shared)


def load_all(names: OutOfBandPickle, namespace: dict[str, Any]) -> tuple[dict[str, Any], SharedObjects]:
    """Unpickle names that this notebook sent, with all objects by the numbers that they had."""
    given, memo = _load_with_memo(names, namespace, False)
    return given, SharedObjects(memo)


def _load_with_memo(
    names: OutOfBandPickle, namespace: dict[str, Any], foreign: bool
) -> tuple[dict[str, Any], dict[int, Any]]:
    if not names.file.peek(1):
        return {}, {}
    unpickler = NotebookUnpickler(names.file, namespace, foreign, buffers=names.buffers)
    given = unpickler.load()
    memo = unpickler.memo.copy()
    # The unpickler is in a reference cycle, so its memo would keep references that `_lasting` counts.
    unpickler.memo = {}
    return given, memo


def _refusal(
    names: Mapping[str, Any],
    namespace: dict[str, Any],
    what: str,
    limit_bytes: int,
    target: TargetLimits,
    error: Exception,
) -> NotPicklable:
    culprits = _culprits(names, namespace, limit_bytes, _all, target) or _all_of(names, error)
    hint = (
        f"The limit is {readable_size(limit_bytes)} (c.Distribute.send_limit_bytes). Choose what travels "
        "with --push a,b, or make it inside the cell (read data there, from a path that all nodes see)."
    )
    return NotPicklable(tuple(culprits), what, hint)


def _all_of(names: Mapping[str, Any], error: Exception) -> list[Culprit]:
    """Return all names: each alone can be pickled, but not all together."""
    return [Culprit(name, type_name(it), 0, reason_of(name, it, error)) for name, it in names.items()]


def _culprits(
    names: Mapping[str, Any], namespace: dict[str, Any], limit_bytes: int, carry: Carry, target: TargetLimits
) -> list[Culprit]:
    """Pickle each name alone, and each global that its functions read; return those that fail."""
    failed: list[Culprit] = []
    sizes: list[Culprit] = []
    todo = dict(names)
    for name in (queue := list(todo)):
        sink = CountingFile(limit_bytes)
        pickler = NotebookPickler(sink, namespace, lambda used: False, target)
        value = todo[name]
        try:
            pickler.dump(value)
        except TooLarge:
            failed.append(_too_large(name, value, sink.size, limit_bytes))
        except Exception as error:
            size = max(sink.size, sys.getsizeof(value, 0))
            failed.append(Culprit(name, type_name(value), size, reason_of(name, value, error)))
        else:
            sizes.append(Culprit(name, type_name(value), sink.size, ""))
        for used in pickler.used - todo.keys():
            if carry(used):
                todo[used] = namespace[used]
                queue.append(used)
    return failed or _largest(sizes, limit_bytes)


def _largest(sizes: list[Culprit], limit_bytes: int) -> list[Culprit]:
    """Return the largest names, as many as it takes for the rest to be within the limit."""
    total = sum(item.size_bytes for item in sizes)
    chosen = []
    for item in sorted(sizes, key=lambda item: -item.size_bytes):
        if total <= limit_bytes:
            break
        reason = f"is too large together with the others: {readable_size(limit_bytes)} are allowed for all"
        chosen.append(Culprit(item.name, item.type_name, item.size_bytes, reason))
        total -= item.size_bytes
    return chosen


def _too_large(name: str, value: object, size_bytes: int, limit_bytes: int) -> Culprit:
    own = getattr(value, "nbytes", 0)
    size = max(size_bytes, own) if isinstance(own, int) else size_bytes
    reason = f"is too large: {readable_size(limit_bytes)} are allowed for all"
    return Culprit(name, type_name(value), size, reason)


def _all(name: str) -> bool:
    return True
