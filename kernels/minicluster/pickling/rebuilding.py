"""Objects that a plain pickle rebuilds wrongly or not at all, and how they are rebuilt here."""

from __future__ import annotations

import importlib
import pickle
import sys
from collections.abc import Iterable, Mapping
from enum import EnumType
from types import CellType
from typing import Any

_SMALL_BYTES = 1_000_000
_OF_ENUM = {"_value_", "_name_", "__objclass__", "_sort_order_"}
"""What Python keeps in each member of an enum."""


def reduce_cell(cell: CellType) -> tuple[Any, ...]:
    """Reduce a closure's cell to an empty one that is filled later: its content may refer to the cell."""
    try:
        content = (cell.cell_contents,)
    except ValueError:
        content = None
    return CellType, (), content, None, None, fill_cell


def fill_cell(cell: CellType, content: tuple[Any]) -> None:
    cell.cell_contents = content[0]


def reduce_exception(error: BaseException) -> tuple[Any, ...] | None:
    """Reduce an exception whose class has its own `__init__`, which may need other arguments than `args`."""
    kind = type(error)
    in_python = (base for base in kind.__mro__ if base.__flags__ & 1 << 9)
    if kind.__reduce__ is not BaseException.__reduce__ or not any("__init__" in vars(it) for it in in_python):
        return None
    return make_exception, (kind, error.args), error.__dict__ or None


def make_exception(kind: type[BaseException], args: tuple[Any, ...]) -> BaseException:
    error = kind.__new__(kind)
    error.args = args
    return error


def with_members(kind: EnumType, reduced: Any) -> Any:
    """Add the members' attributes to an enum that was reduced by value.

    The members are rebuilt before the class has its methods, so they lack what its `__init__` set.
    """
    if not isinstance(reduced, tuple) or len(reduced) != 6:
        return reduced
    own = [
        (member, {name: value for name, value in vars(member).items() if name not in _OF_ENUM})
        for member in dict.fromkeys(kind.__members__.values())
    ]
    return *reduced[:2], (reduced[2], own, reduced[5]), None, None, fill_enum


def fill_enum(kind: EnumType, content: tuple[Any, list[tuple[Any, dict[str, Any]]], Any]) -> None:
    state, members, fill = content
    fill(kind, state)
    for member, own in members:
        vars(member).update(own)


def reduce_array(array: Any, links: Mapping[int, bool] | None = None) -> tuple[Any, ...] | None:
    """Reduce a numpy array: an owner with its memory, a view as its owner and its place there.

    A small view of a large array is sent as an array of its own: nobody may need the rest of the owner.
    links: for owners that the other side has or gets anyway, by id: whether their views are sent as views.
    """
    numpy = sys.modules.get("numpy")
    if numpy is None or type(array) is not numpy.ndarray or array.dtype.kind not in "biufc":
        return None
    owner = array
    while type(owner.base) is numpy.ndarray:
        owner = owner.base
    linked = (links or {}).get(id(owner), owner.nbytes <= max(_SMALL_BYTES, 2 * array.nbytes))
    if owner is array or not owner.flags.c_contiguous or not linked:
        return _reduce_owner(array)
    offset = array.__array_interface__["data"][0] - owner.__array_interface__["data"][0]
    return array_view, (owner, array.shape, array.dtype, offset, array.strides, array.flags.writeable)


def reduce_record(record: Any, links: Mapping[int, bool]) -> tuple[Any, ...] | None:
    """Reduce one element of a structured array to its array and index; numpy pickles it as a read-only copy.

    links: see `reduce_array`.
    """
    numpy = sys.modules.get("numpy")
    if numpy is None or not isinstance(record, numpy.void) or not record.dtype.names:
        return None
    owner = record.base
    while isinstance(owner, numpy.ndarray) and isinstance(owner.base, numpy.ndarray):
        owner = owner.base
    if not isinstance(owner, numpy.ndarray) or not _is_element_of(record, owner, links):
        return record_of, (numpy.array(record), 0)
    return record_of, (owner, (_address(record) - _address(owner)) // owner.itemsize)


def _is_element_of(record: Any, owner: Any, links: Mapping[int, bool]) -> bool:
    alike = owner.flags.c_contiguous and owner.dtype == record.dtype
    return alike and links.get(id(owner), owner.nbytes <= _SMALL_BYTES)


def _address(of: Any) -> int:
    numpy = sys.modules["numpy"]
    plain = of if isinstance(of, numpy.ndarray) else numpy.frombuffer(memoryview(of), numpy.uint8)
    return int(plain.__array_interface__["data"][0])


def record_of(owner: Any, index: int) -> Any:
    return owner.reshape(-1)[index]


def arrays_in(values: Iterable[Any]) -> list[Any]:
    numpy = sys.modules.get("numpy")
    return [it for it in values if numpy is not None and type(it) is numpy.ndarray]


def is_in_one_piece_there(array: Any) -> bool:
    """Whether `make_array` made this array: at the sender, others may not be contiguous."""
    return array.base is not None and not isinstance(array.base, bytes)


def _reduce_owner(array: Any) -> tuple[Any, ...] | None:
    if not array.flags.forc or array.size == 0:
        return None
    order = "C" if array.flags.c_contiguous else "F"
    return make_array, (pickle.PickleBuffer(array), array.dtype, array.shape, order)


def make_array(data: Any, dtype: Any, shape: Any, order: str) -> Any:
    """Make an array from bytes of its own. Its base is no array, so it counts as the owner of its memory."""
    numpy = sys.modules.get("numpy") or importlib.import_module("numpy")
    return numpy.ndarray(shape, dtype, data, 0, None, order)


class ArrayContent:
    """Pickles as a new array with this one's content, without a copy if the array is contiguous."""

    def __init__(self, array: Any) -> None:
        self._array = array

    def __reduce__(self) -> tuple[Any, ...]:
        # Subclasses have more than numbers: masked arrays have a mask.
        plain = type(self._array) is sys.modules["numpy"].ndarray and self._array.dtype.kind in "biufc"
        return (plain and _reduce_owner(self._array)) or self._array.copy(order="C").__reduce_ex__(5)


def array_view(owner: Any, shape: Any, dtype: Any, offset: int, strides: Any, writeable: bool = True) -> Any:
    """Make an array that is a view of another one's memory."""
    view = sys.modules["numpy"].ndarray(shape, dtype, owner, offset, strides)
    view.flags.writeable = writeable and view.flags.writeable
    return view
