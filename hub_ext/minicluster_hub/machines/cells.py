"""Values of an interval of time as files hold them: mean, maximum and number of readings of each field."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from struct import Struct

_PARTS = 3
"""A cell is three numbers of 4 bytes."""


@dataclass(frozen=True, slots=True)
class Cell:
    """count: how many readings it stands for; 0: none, and mean and high mean nothing."""

    mean: float = 0.0
    high: float = 0.0
    count: float = 0.0

    def and_value(self, value: float) -> Cell:
        return self.and_cell(Cell(value, value, 1.0))

    def and_cell(self, other: Cell) -> Cell:
        """Return the cell of both intervals together."""
        if not self.count or not other.count:
            return self if self.count else other
        count = self.count + other.count
        mean = self.mean + (other.mean - self.mean) * (other.count / count)
        return Cell(mean, max(self.high, other.high), count)


EMPTY = Cell()


class CellRow:
    """The cells of all fields in one interval, as bytes."""

    def __init__(self, fields: Sequence[str]) -> None:
        self.fields = tuple(fields)
        self._struct = Struct(f"<{_PARTS * len(self.fields)}f")
        self.size = self._struct.size

    def unpack(self, data: bytes | memoryview, offset: int = 0) -> list[Cell]:
        numbers = self._struct.unpack_from(data, offset)
        return [Cell(*numbers[start : start + _PARTS]) for start in range(0, len(numbers), _PARTS)]

    def pack(self, cells: Iterable[Cell]) -> bytes:
        return self._struct.pack(*(part for cell in cells for part in (cell.mean, cell.high, cell.count)))

    def with_values(self, cells: Sequence[Cell], values: Mapping[str, float]) -> list[Cell]:
        """Add one reading; a field without a value, or with none that is finite, stays as it is."""
        return list(self._added(cells, values))

    def _added(self, cells: Sequence[Cell], values: Mapping[str, float]) -> Iterator[Cell]:
        for name, cell in zip(self.fields, cells, strict=True):
            value = values.get(name)
            yield cell if value is None or not math.isfinite(value) else cell.and_value(value)

    @property
    def empty(self) -> list[Cell]:
        return [EMPTY] * len(self.fields)


def merged(rows: Sequence[Sequence[Cell]]) -> list[Cell]:
    """Return the cells of neighbouring intervals together; there is at least one."""
    first, *others = rows
    total = list(first)
    for row in others:
        total = [one.and_cell(other) for one, other in zip(total, row, strict=True)]
    return total


@dataclass(frozen=True, slots=True)
class Columns:
    """Values of some fields over time. at: the beginnings of intervals of `step_s` seconds."""

    step_s: float
    at: tuple[float, ...]
    fields: dict[str, list[Cell]]


def columns(
    rows: Sequence[tuple[int, Sequence[Cell]]], fields: Sequence[str], step_s: float, origin: float = 0.0
) -> Columns:
    """Return rows, each with the number of its interval, as columns."""
    return Columns(
        step_s,
        tuple(origin + number * step_s for number, _ in rows),
        {name: [cells[place] for _, cells in rows] for place, name in enumerate(fields)},
    )


def grouped(rows: Iterable[tuple[int, Sequence[Cell]]], together: int) -> list[tuple[int, Sequence[Cell]]]:
    """Join each `together` intervals into one. The rows are in the order of their numbers."""
    groups: dict[int, list[Sequence[Cell]]] = {}
    for number, cells in rows:
        groups.setdefault(number // together, []).append(cells)
    return [(number, merged(some)) for number, some in groups.items()]
