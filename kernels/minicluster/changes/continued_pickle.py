"""A pickle that continues the one that the notebook sent: objects of both sides are written as numbers."""

from __future__ import annotations

import gc
import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any, BinaryIO, ClassVar

from minicluster.changes.shared_objects import SharedObjects, is_storage
from minicluster.pickling.pickler import Carry, CountingFile, NotebookPickler, TargetLimits
from minicluster.pickling.rebuilding import arrays_in, is_in_one_piece_there
from minicluster.pickling.tensors import StoredTensorStorage
from minicluster.pickling.unpickling import ForeignCode, NotebookUnpickler

Body = dict[str, Any]
JAX_AS_NUMPY = "jax_as_numpy"
"""A key of the body: whether arrays of JAX came as NumPy's."""
_OF_PYTHON = pickle._Unpickler.dispatch  # type: ignore[attr-defined]
_BUILD = _OF_PYTHON[pickle.BUILD[0]]

_PROTO, _BININT, _BINPERSID, _MEMOIZE, _POP, _NONE_STOP = b"\x80\x05", b"J", b"Q", b"\x94", b"0", b"N."


@dataclass(frozen=True)
class TrialPickle:
    """A try to pickle a value. error: why it failed, else None. used: globals that its functions read."""

    error: Exception | None
    size_bytes: int
    used: set[str]


class Continued:
    """Writes pickles for a reader that has first read `prelude`."""

    def __init__(
        self, shared: SharedObjects, namespace: dict[str, Any], carry: Carry, target: TargetLimits
    ) -> None:
        self._stored = {n: StoredTensorStorage(obj) for n, obj in shared.objects.items() if is_storage(obj)}
        self._numbers = list(shared.objects)
        objects = [self._stored.get(number, shared.objects[number]) for number in self._numbers]
        self._memo = {id(obj): (place, obj) for place, obj in enumerate(objects)}
        self._links = {id(it): is_in_one_piece_there(it) for it in arrays_in(shared.objects.values())}
        self._namespace, self._carry, self._target = namespace, carry, target

    def prelude(self) -> bytes:
        """Return opcodes that load each shared object and store it in the memo."""
        steps = (
            _BININT + number.to_bytes(4, "little") + _BINPERSID + _MEMOIZE + _POP for number in self._numbers
        )
        return b"".join([_PROTO, *steps, _NONE_STOP])

    def pickler(self, file: Any, carry: Carry | None = None) -> NotebookPickler:
        pickler = NotebookPickler(file, self._namespace, carry or self._carry, self._target)
        pickler.memo = self._memo
        pickler.links = self._links
        for stored in self._stored.values():
            pickler.tensors.know(stored)
        return pickler

    def trial(self, value: Any, limit_bytes: int) -> TrialPickle:
        """Try to pickle a value, without the globals that its functions read."""
        sink, error = CountingFile(limit_bytes), None
        pickler = self.pickler(sink, lambda used: False)
        try:
            pickler.dump(value)
        except Exception as raised:  # An object's own __reduce__ may raise anything.
            error = raised
        return TrialPickle(error, sink.size, pickler.used)


# How the notebook reads it.


class UnknownObject(pickle.UnpicklingError):
    """The result refers to objects that this notebook did not send."""


def read_body(
    file: BinaryIO,
    namespace: dict[str, Any],
    foreign: bool,
    shared: SharedObjects | None,
    late: dict[str, Any],
) -> tuple[Body, dict[str, str]]:
    """Read names, value and changes. Return them, and why some names cannot be unpickled here.

    shared: what this notebook sent. late: takes the globals that were sent with functions.
    """

    def unpickler() -> NotebookUnpickler:
        return _ContinuedUnpickler(file, namespace, foreign, late)

    start = file.tell()
    try:
        return _read(unpickler(), shared), {}
    except (ForeignCode, UnknownObject):
        raise
    except Exception:  # noqa: S110 - read once more below, where each object's own error is kept
        pass
    # One object that cannot be unpickled must not prevent the others. Remove half-made classes first.
    gc.collect()
    late.clear()
    file.seek(start)
    patient = _PatientUnpickler(file, unpickler().find_class)
    body = _read(patient, shared)
    ours = {id(obj) for obj in (shared.objects.values() if shared else ())} | {id(namespace)}
    values = [*body["names"].items(), *(("_", value) for value in body["value"].values())]
    values += [(f"#{number}", deltas) for number, deltas in body["changes"]]
    reasons = ((name, _broken_in(value, patient.broken, ours)) for name, value in values)
    return body, {name: reason for name, reason in reasons if reason}


def _read(reader: Any, shared: SharedObjects | None) -> Body:
    reader.shared = shared
    reader.load()
    body = reader.load()
    return {**body, JAX_AS_NUMPY: getattr(reader, "jax_as_numpy", False)}


class _ContinuedUnpickler(NotebookUnpickler):
    shared: SharedObjects | None

    def persistent_load(self, pid: int) -> Any:
        return object_of(self.shared, pid)


def object_of(shared: SharedObjects | None, number: int) -> Any:
    if shared is None or number not in shared.objects:
        raise UnknownObject(f"object {number} of the cell is not here")
    return shared.objects[number]


class Broken:
    """Stands for an object that could not be unpickled, and accepts what would have been put into it."""

    def append(self, *_: object) -> None:
        return

    extend = add = update = __setitem__ = append


class _PatientUnpickler(pickle._Unpickler):  # type: ignore[misc, name-defined]
    """Python's own unpickler. It replaces an object that cannot be unpickled by a stand-in, and continues."""

    shared: SharedObjects | None

    def __init__(self, file: BinaryIO, find: Callable[[str, str], Any]) -> None:
        super().__init__(file)
        self._find = find
        self.broken: dict[int, tuple[Any, str]] = {}

    def find_class(self, module: str, name: str) -> Any:
        try:
            return self._find(module, name)
        except Exception as error:
            return self._stand_in(error)

    def persistent_load(self, pid: Any) -> Any:
        return object_of(self.shared, pid)

    def _stand_in(self, error: Exception, instead: Any = None) -> Any:
        broken = Broken() if instead is None else instead
        self.broken[id(broken)] = broken, f"{type(error).__name__}: {str(error)[:200]}"
        return broken

    def _patiently(self, step: Callable[[Any], None], takes: int) -> None:
        """Run an opcode that makes an object from the top entries of the stack."""
        below = len(self.stack) - takes  # type: ignore[has-type]
        first = made = self.stack[below]  # type: ignore[has-type]
        if not isinstance(first, Broken):
            try:
                step(self)
                return
            except ForeignCode:
                raise
            except Exception as error:
                made = self._stand_in(error, first if step is _BUILD else None)
        # In place, since the unpickler holds a reference to this list's `append`.
        self.stack[below:] = [made]  # type: ignore[has-type]

    dispatch: ClassVar[Any] = dict(pickle._Unpickler.dispatch)  # type: ignore[attr-defined]


def _patient_step(step: Callable[[Any], None], takes: int) -> Callable[[Any], None]:
    return lambda self: self._patiently(step, takes)


for _code, _takes in ((pickle.REDUCE, 2), (pickle.BUILD, 2), (pickle.NEWOBJ, 2), (pickle.NEWOBJ_EX, 3)):
    _PatientUnpickler.dispatch[_code[0]] = _patient_step(_OF_PYTHON[_code[0]], _takes)


def _broken_in(value: Any, broken: Mapping[int, tuple[Any, str]], ours: set[int]) -> str:
    """Return why an object within a value could not be unpickled; empty if all could."""
    todo, seen = [value], set(ours)
    while todo:
        obj = todo.pop()
        if id(obj) in broken:
            return broken[id(obj)][1]
        if id(obj) not in seen and not isinstance(obj, ModuleType | type):
            seen.add(id(obj))
            todo.extend(gc.get_referents(obj))
    return ""
