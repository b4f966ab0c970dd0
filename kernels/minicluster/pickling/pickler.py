"""cloudpickle's pickler, adapted to notebooks, and the files that it writes to."""

from __future__ import annotations

import dis
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import EnumType
from types import CellType, CodeType, FunctionType, ModuleType
from typing import Any, BinaryIO

import cloudpickle

from minicluster.pickling.by_value import NAMED, reduce_by_value
from minicluster.pickling.jax_arrays import reduce_jax_array
from minicluster.pickling.optimizers import reduce_optimizer
from minicluster.pickling.pandas_tables import is_table, reduce_table
from minicluster.pickling.parts import PartsFile
from minicluster.pickling.rebuilding import (
    reduce_array,
    reduce_cell,
    reduce_exception,
    reduce_record,
    with_members,
)
from minicluster.pickling.refusal import KindRefused, reason_against
from minicluster.pickling.tensors import TensorReducer
from minicluster.pickling.unpickling import HOME_MARK

Carry = Callable[[str], bool]


class TooLarge(Exception):
    """The pickle is larger than its limit."""


@dataclass(frozen=True)
class TargetLimits:
    """What the process that will read a pickle cannot read.

    code_refusal: why it cannot run functions and classes that are sent by value; empty if it can.
    missing_modules: modules that it does not have, each with the reason to show.
    """

    code_refusal: str = ""
    missing_modules: Mapping[str, str] = field(default_factory=dict)


ANY_TARGET = TargetLimits()


class CountingFile:
    """A file that only counts bytes. Raises TooLarge above a limit."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self.size = 0

    def write(self, data: Any) -> int:
        # Large buffers arrive as PickleBuffer, which has no length.
        written = memoryview(data).nbytes
        self.size += written
        if self.size > self._limit_bytes:
            raise TooLarge
        return written


class LimitedFile(CountingFile):
    """Writes to another file. Raises TooLarge above a limit."""

    def __init__(self, limit_bytes: int, file: BinaryIO | PartsFile) -> None:
        super().__init__(limit_bytes)
        self._file = file

    def write(self, data: Any) -> int:
        super().write(data)
        return self._file.write(data)


class NotebookPickler(cloudpickle.Pickler):
    """cloudpickle's pickler. It writes a mark for the namespace, explains refusals, copies tensors from GPUs.

    carry: returns whether a global that a function of the notebook reads is sent along.
    used: all such globals that were found.
    modules: top-level modules that the reading process will import.
    files: the files in which functions that are sent by value were written.
    links: see `reduce_array`.
    """

    def __init__(
        self, file: Any, namespace: dict[str, Any], carry: Carry, target: TargetLimits = ANY_TARGET
    ) -> None:
        super().__init__(file, protocol=5)
        self.used: set[str] = set()
        self.modules: set[str] = set()
        self.files: set[str] = set()
        self._namespace = namespace
        self._carry = carry
        self._target = target
        self._verdicts: dict[type, str] = {}
        self.tensors = TensorReducer()
        self.links: dict[int, bool] = {}
        self.globals_ref[id(namespace)] = HOME_MARK

    def reducer_override(self, obj: Any) -> Any:
        kind = type(obj)
        if kind not in self._verdicts:
            self._verdicts[kind] = reason_against(kind) or self._lacks(kind.__module__)
        if isinstance(obj, (ModuleType, FunctionType, type, *NAMED)):
            self._note_module(obj)
        if obj is sys.stdout or obj is sys.stderr:
            return getattr, (sys, "stdout" if obj is sys.stdout else "stderr")
        if self._verdicts[kind]:
            raise KindRefused(obj, self._verdicts[kind])
        if kind is ModuleType and vars(obj) is self._namespace:
            return cloudpickle.cloudpickle.subimport, ("__main__",)
        if kind is not ModuleType and isinstance(obj, ModuleType) and sys.modules.get(obj.__name__) is obj:
            # These modules have a type of their own: torch.backends.cudnn, torch.classes, torch.ops.
            return cloudpickle.cloudpickle.subimport, (obj.__name__,)
        reduced = reduce_by_value(obj) or self._reduce_data(obj, kind) or super().reducer_override(obj)
        return with_members(obj, reduced) if isinstance(obj, EnumType) else reduced

    def _reduce_data(self, obj: Any, kind: type) -> Any:
        if isinstance(obj, CellType):
            return reduce_cell(obj)
        if isinstance(obj, BaseException):
            return reduce_exception(obj)
        if is_table(kind):
            self._note_module(kind)
            return reduce_table(obj)
        if made := reduce_jax_array(obj):
            # What reads it need not have JAX.
            self.modules.add("jax")
            return made
        array = reduce_array(obj, self.links) or reduce_record(obj, self.links)
        return array or self.tensors.reduce(obj) or reduce_optimizer(obj)

    def _dynamic_function_reduce(self, func: FunctionType) -> Any:
        if self._target.code_refusal:
            raise KindRefused(func, self._target.code_refusal)
        reduced = super()._dynamic_function_reduce(func)
        self.modules.update(_imports_in(func.__code__))
        self.files.add(func.__code__.co_filename)
        if func.__globals__ is self._namespace:
            slots = reduced[2][1]
            used = slots["__globals__"]
            self.used.update(used)
            slots["__globals__"] = {name: value for name, value in used.items() if self._carry(name)}
        # The closure's cells themselves are pickled, so that functions that share a variable still share it.
        reduced[2][1]["__closure__"] = None
        args = (*reduced[1][:-1], func.__closure__)
        return (reduced[0], args, *reduced[2:])

    def _note_module(self, obj: Any) -> None:
        name = obj.__name__ if isinstance(obj, ModuleType) else obj.__module__
        if isinstance(name, str):
            self.modules.add(name.partition(".")[0])
            if lacks := self._lacks(name):
                raise KindRefused(obj, lacks)

    def _lacks(self, module: str) -> str:
        return self._target.missing_modules.get(module.partition(".")[0], "")


def _imports_in(code: CodeType) -> Iterator[str]:
    for step in dis.get_instructions(code):
        if step.opname == "IMPORT_NAME":
            yield str(step.argval).partition(".")[0]
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _imports_in(constant)
