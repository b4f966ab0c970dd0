"""The history of one machine in a file of fixed size: the newest readings finely, older ones coarsely.

Each level is a ring of intervals: the newest overwrites the oldest. All space is taken when the file is made,
so that a disk that fills up later does not end the history.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from struct import Struct
from typing import Any

from minicluster_hub.machines.cells import Cell, CellRow, Columns, columns, grouped

_HEADER_BYTES = 16_384
_NUMBER = Struct("<I")
_VERSION = 1


@dataclass(frozen=True, slots=True)
class Level:
    """A ring of intervals of `step_s` seconds."""

    step_s: int
    intervals: int

    @property
    def span_s(self) -> int:
        return self.step_s * self.intervals


LEVELS = (Level(2, 1860), Level(60, 2940), Level(600, 2040))
"""An hour, two days, two weeks, and a little more: who asks for the last hour gets it finely."""
KEPT_S = max(level.span_s for level in LEVELS)


class Ring:
    """A machine's file. fields: of its readings; if these change, columns of the same name are kept.

    Methods may raise OSError. `add` is for one thread; `read` may run in another.
    """

    def __init__(self, path: Path, fields: Sequence[str], levels: Sequence[Level] = LEVELS) -> None:
        self._row = CellRow(fields)
        self._levels = tuple(levels)
        self._current: dict[Level, tuple[int, list[Cell]]] = {}
        self._size = _NUMBER.size + self._row.size
        if _header(path) != self._own_header():
            self._make(path)
        self._file = path.open("r+b", buffering=0)

    @property
    def fields(self) -> tuple[str, ...]:
        return self._row.fields

    def close(self) -> None:
        self._file.close()

    def add(self, at: float, values: Mapping[str, float]) -> None:
        """Add a reading to its interval in each level. A time before the newest interval is left out."""
        for level in self._levels:
            number = int(at // level.step_s)
            newest, cells = self._current.get(level) or (number, self._stored(level, number))
            if number < newest:
                continue
            if number > newest:
                cells = self._stored(level, number)
            cells = self._row.with_values(cells, values)
            self._current[level] = number, cells
            data = _NUMBER.pack(number) + self._row.pack(cells)
            os.pwrite(self._file.fileno(), data, self._offset(level, number))

    def read(self, fields: Sequence[str], low: float, high: float, points: int, now: float) -> Columns:
        """Return at most about `points` intervals of these fields from `low` to `high`."""
        level = self._finest(now - low)
        low = max(low, now - level.span_s)
        first, last = int(low // level.step_s), int(high // level.step_s)
        together = max(1, ceil((last - first + 1) / max(1, points)))
        places = [self._row.fields.index(name) for name in fields]
        rows = (
            (number, [cells[place] for place in places]) for number, cells in self._rows(level, first, last)
        )
        return columns(grouped(rows, together), fields, float(level.step_s * together))

    def _finest(self, age_s: float) -> Level:
        """Return the finest level that goes back that far; the coarsest if none does."""
        return next((level for level in self._levels if level.span_s >= age_s), self._levels[-1])

    def _rows(self, level: Level, first: int, last: int) -> Iterator[tuple[int, list[Cell]]]:
        data = os.pread(self._file.fileno(), level.intervals * self._size, self._offset(level, 0))
        for number in range(max(first, last - level.intervals + 1), last + 1):
            offset = number % level.intervals * self._size
            if _NUMBER.unpack_from(data, offset)[0] == number:
                yield number, self._row.unpack(data, offset + _NUMBER.size)

    def _stored(self, level: Level, number: int) -> list[Cell]:
        """Return what the file has of an interval: a service before this one may have begun it."""
        data = os.pread(self._file.fileno(), self._size, self._offset(level, number))
        if len(data) == self._size and _NUMBER.unpack_from(data)[0] == number:
            return self._row.unpack(data, _NUMBER.size)
        return self._row.empty

    def _offset(self, level: Level, number: int) -> int:
        before = sum(one.intervals for one in self._levels[: self._levels.index(level)])
        return _HEADER_BYTES + (before + number % level.intervals) * self._size

    # --- making the file ----------------------------------------------------------------------

    def _own_header(self) -> dict[str, Any]:
        levels = [[level.step_s, level.intervals] for level in self._levels]
        return {"version": _VERSION, "fields": list(self._row.fields), "levels": levels}

    def _make(self, path: Path) -> None:
        """Make the file, with the columns that a former one has of these fields."""
        header = json.dumps(self._own_header()).encode()
        if len(header) >= _HEADER_BYTES:
            raise OSError(
                f"{path.name}: {len(self._row.fields)} fields are more than the file's header holds"
            )
        former = _former(path, self._levels)
        new = path.with_suffix(".new")
        with new.open("w+b", buffering=0) as file:
            size = _HEADER_BYTES + sum(level.intervals for level in self._levels) * self._size
            os.posix_fallocate(file.fileno(), 0, size)
            os.pwrite(file.fileno(), header.ljust(_HEADER_BYTES, b"\0"), 0)
            if former is not None:
                self._copy(former, file.fileno())
                former.close()
        new.replace(path)

    def _copy(self, former: Ring, file: int) -> None:
        for level in self._levels:
            for number, cells in former._all(level):
                old = dict(zip(former.fields, cells, strict=True))
                row = self._row.pack(old.get(name, Cell()) for name in self._row.fields)
                os.pwrite(file, _NUMBER.pack(number) + row, self._offset(level, number))

    def _all(self, level: Level) -> Iterator[tuple[int, list[Cell]]]:
        data = os.pread(self._file.fileno(), level.intervals * self._size, self._offset(level, 0))
        for offset in range(0, len(data) - self._size + 1, self._size):
            (number,) = _NUMBER.unpack_from(data, offset)
            if number:
                yield number, self._row.unpack(data, offset + _NUMBER.size)


def fields_of(path: Path) -> tuple[str, ...]:
    """Return the fields of a machine's file; none if it is missing or damaged."""
    header = _header(path)
    return tuple(header["fields"]) if header else ()


def _former(path: Path, levels: Sequence[Level]) -> Ring | None:
    """Open a file with other fields, to copy from it; None if it cannot be used."""
    header = _header(path)
    own = [[level.step_s, level.intervals] for level in levels]
    if header is None or header.get("version") != _VERSION or header.get("levels") != own:
        return None
    return Ring(path, header["fields"], levels)


def _header(path: Path) -> dict[str, Any] | None:
    try:
        with path.open("rb") as file:
            header = json.loads(file.read(_HEADER_BYTES).rstrip(b"\0"))
    except (OSError, ValueError):
        return None
    sound = isinstance(header, dict) and isinstance(header.get("fields"), list)
    return header if sound else None
