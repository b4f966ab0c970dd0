"""Unpickling into a namespace: functions get it as their globals, classes keep their identity."""

from __future__ import annotations

import builtins
import gc
import importlib
import io
import pickle
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import CellType, CodeType, FunctionType, ModuleType
from typing import Any, BinaryIO

from cloudpickle import cloudpickle

from minicluster.pickling import jax_arrays


def home_namespace() -> dict[str, Any]:
    """Stand in a pickle for the namespace of the process that reads it. Only `loads` can replace it."""
    raise pickle.UnpicklingError("this pickle can be read by minicluster.pickling.pickling.loads only")


_MOVED = {"pathlib._local": "pathlib"}
"""Modules that only Python 3.13 has, and where other versions have the same: classes of paths."""


class _HomeMark:
    def __reduce__(self) -> tuple[Any, ...]:
        return home_namespace, ()


HOME_MARK = _HomeMark()


@dataclass(frozen=True)
class MissingModule:
    """Stands for a module that the sender had and that this process cannot import."""

    name: str
    reason: str


@dataclass(frozen=True)
class SoftModule:
    """A module among results. If it cannot be imported, the other results still arrive."""

    name: str

    @staticmethod
    def of(value: Any) -> Any:
        return SoftModule(value.__name__) if isinstance(value, ModuleType) else value

    def __reduce__(self) -> tuple[Any, ...]:
        return import_or_missing, (self.name,)


def import_or_missing(name: str) -> ModuleType | MissingModule:
    try:
        return importlib.import_module(name)
    except Exception as error:
        # An import may raise anything: the other results must still arrive.
        return MissingModule(name, f"{type(error).__name__}: {error}")


class ForeignCode(pickle.UnpicklingError):
    """The pickle has a function or class by value, in bytecode of another Python: to run it would crash."""


def loads(data: bytes, namespace: dict[str, Any], foreign: bool = False) -> dict[str, Any]:
    """Unpickle names that `dumps` made.

    Functions get `namespace` as their globals. The globals that were sent with them are added to it unless
    it has those names already. A class that was sent from here is found again, not made anew.
    foreign: whether another minor version of Python made the pickle. Then raises ForeignCode if it has code.
    """
    return load(io.BytesIO(data), namespace, foreign) if data else {}


def load(file: BinaryIO, namespace: dict[str, Any], foreign: bool = False) -> dict[str, Any]:
    """Unpickle as `loads`, from a file that is not read into memory as a whole."""
    return NotebookUnpickler(file, namespace, foreign).load()


class NotebookUnpickler(pickle.Unpickler):
    """Unpickles as described in `loads`.

    late: if given, it takes the globals that were sent with functions, instead of the namespace.
    buffers: see `parts.OutOfBandPickle`.
    """

    def __init__(
        self,
        file: BinaryIO,
        namespace: dict[str, Any],
        foreign: bool,
        late: dict[str, Any] | None = None,
        buffers: Iterable[Any] = (),
    ) -> None:
        super().__init__(file, buffers=buffers)
        self._known: list[type] = []
        self._namespace = namespace
        self._late = namespace if late is None else late
        own = {
            "_make_function": _make_function,
            "_function_setstate": self._set_function_state,
            "_make_skeleton_class": self._class_maker(4, cloudpickle._make_skeleton_class),
            "_make_skeleton_enum": self._class_maker(5, cloudpickle._make_skeleton_enum),
            "_class_setstate": self._set_class_state,
        }
        self._own = {(cloudpickle.__name__, name): function for name, function in own.items()}
        self._own[__name__, "home_namespace"] = lambda: namespace
        self._own[jax_arrays.__name__, "make_jax_array"] = self._jax_array
        self.jax_as_numpy = False
        """Whether arrays of JAX came as NumPy's, since this process has no JAX."""
        if foreign:
            self._own[cloudpickle.__name__, "_builtin_type"] = _builtin_type_without_code

    def find_class(self, module: str, name: str) -> Any:
        own = self._own.get((module, name))
        return super().find_class(_MOVED.get(module, module), name) if own is None else own

    def _jax_array(self, content: Any, *more: Any) -> Any:
        made = jax_arrays.make_jax_array(content, *more)
        self.jax_as_numpy |= made is content
        return made

    def _class_maker(self, id_position: int, make: Any) -> Any:
        def make_or_find(*args: Any) -> type:
            known = args[id_position] in cloudpickle._DYNAMIC_CLASS_TRACKER_BY_ID
            made = make(*args)
            if known:
                self._known.append(made)
            return made

        return make_or_find

    def _set_function_state(
        self, function: FunctionType, state: tuple[dict[str, Any], dict[str, Any]]
    ) -> None:
        fields, slots = state
        function.__dict__.update(fields)
        slots = dict(slots)
        slots.pop("_cloudpickle_submodules")
        home = function.__globals__ is self._namespace
        for name, value in slots.pop("__globals__").items():
            if not home or name not in self._namespace:
                (self._late if home else function.__globals__).setdefault(name, value)
        if (closure := slots.pop("__closure__")) is not None:
            _fill(function.__closure__, closure)
        for name, value in slots.items():
            setattr(function, name, value)

    def _set_class_state(self, cls: type, state: Any) -> type:
        # A class that exists here keeps its own attributes and methods.
        if any(cls is known for known in self._known):
            return cls
        return cloudpickle._class_setstate(cls, state)


def _builtin_type_without_code(name: str) -> Any:
    if name == "CodeType":
        raise ForeignCode("it holds a function or a class that a notebook or a cell defined")
    return cloudpickle._builtin_type(name)


def _make_function(
    code: CodeType, namespace: dict[str, Any], name: Any, defaults: Any, closure: Any
) -> FunctionType:
    namespace.setdefault("__builtins__", builtins)
    return FunctionType(code, namespace, name, defaults, closure)


def _fill(cells: tuple[CellType, ...] | None, sent: tuple[CellType, ...] | None) -> None:
    for cell, other in zip(cells or (), sent or (), strict=True):
        try:
            cell.cell_contents = other.cell_contents
        except ValueError:
            # The cell is empty: its variable is not assigned yet.
            continue


@contextmanager
def no_collection() -> Iterator[None]:
    """Switch the garbage collector off: it would visit many new objects again and again."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()
