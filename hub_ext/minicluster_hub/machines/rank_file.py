"""What a run's ranks used, in one file: each rank has the same number of intervals, however long the run is.

When a run gets longer than its intervals, each two become one of twice the length. The file is sparse: a
short run takes little of the disk.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from struct import Struct
from threading import Lock

from minicluster_hub.machines.cells import Cell, CellRow, Columns, columns, grouped, merged

FIELDS = (
    "cpu_percent",
    "memory_bytes",
    "gpu_percent",
    "gpu_memory_bytes",
    "received_bytes_s",
    "sent_bytes_s",
)
INTERVALS = 1024
FIRST_STEP_S = 2
MOST_RANKS = 256
"""More ranks of a run are not stored."""
_MARK = b"MCR1"
_HEADER = Struct("<4sIIxxxxd")
"""A mark, the rank, the step in seconds, the beginning of the first interval."""
_HEADER_BYTES = 64
_ROW = CellRow(FIELDS)
_PART_BYTES = _HEADER_BYTES + INTERVALS * _ROW.size


@dataclass(frozen=True, slots=True)
class _Part:
    """The part of one rank: where it begins in the file, and its axis of time."""

    offset: int
    rank: int
    step_s: int
    began_at: float

    def place(self, number: int) -> int:
        return self.offset + _HEADER_BYTES + number * _ROW.size


class RankFile:
    """A run's file. Each method opens it and closes it again. Raises OSError.

    lock: of all files together; a reader in another thread must not see a half of a change.
    """

    def __init__(self, path: Path, lock: Lock) -> None:
        self._path = path
        self._lock = lock

    def add(self, at: float, readings: Mapping[int, Mapping[str, float]]) -> None:
        """Add readings of ranks. Those of more than MOST_RANKS ranks are left out."""
        with self._lock, self._opened() as file:
            parts = {part.rank: part for part in _parts(file.number)}
            for rank, values in sorted(readings.items()):
                if rank not in parts and len(parts) >= MOST_RANKS:
                    continue
                part = parts.get(rank) or _new_part(file.number, rank, len(parts), at)
                parts[rank] = _add(file.number, part, at, values)

    def read(self, points: int) -> dict[int, Columns]:
        """Return the columns of each rank, with at most about so many intervals."""
        if not self._path.exists():
            return {}
        with self._lock, self._opened() as file:
            found = {part.rank: _read(file.number, part, points) for part in _parts(file.number)}
        return dict(sorted(found.items()))

    def _opened(self) -> _File:
        return _File(self._path)


class _File:
    """An open file, made if it is missing."""

    def __init__(self, path: Path) -> None:
        self.number = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def __enter__(self) -> _File:
        return self

    def __exit__(self, *_error: object) -> None:
        os.close(self.number)


def _parts(file: int) -> Iterator[_Part]:
    for offset in range(0, os.fstat(file).st_size, _PART_BYTES):
        data = os.pread(file, _HEADER.size, offset)
        if len(data) < _HEADER.size:
            return
        mark, rank, step_s, began_at = _HEADER.unpack(data)
        if mark != _MARK or step_s == 0:
            return  # Damaged: what comes is not readable, either.
        yield _Part(offset, rank, step_s, began_at)


def _new_part(file: int, rank: int, number: int, at: float) -> _Part:
    part = _Part(number * _PART_BYTES, rank, FIRST_STEP_S, at // FIRST_STEP_S * FIRST_STEP_S)
    os.ftruncate(file, part.offset)  # Behind a damaged part, too.
    os.ftruncate(file, part.offset + _PART_BYTES)
    _write_header(file, part)
    return part


def _write_header(file: int, part: _Part) -> None:
    os.pwrite(file, _HEADER.pack(_MARK, part.rank, part.step_s, part.began_at), part.offset)


def _add(file: int, part: _Part, at: float, values: Mapping[str, float]) -> _Part:
    while (number := int((at - part.began_at) // part.step_s)) >= INTERVALS:
        part = _fold(file, part)
    if number >= 0:  # Else the clock was put back.
        data = os.pread(file, _ROW.size, part.place(number))
        os.pwrite(file, _ROW.pack(_ROW.with_values(_ROW.unpack(data), values)), part.place(number))
    return part


def _fold(file: int, part: _Part) -> _Part:
    """Join each two intervals."""
    data = os.pread(file, INTERVALS * _ROW.size, part.place(0))
    rows = [_ROW.unpack(data, number * _ROW.size) for number in range(INTERVALS)]
    joined = b"".join(_ROW.pack(merged(rows[number : number + 2])) for number in range(0, INTERVALS, 2))
    os.pwrite(file, joined.ljust(INTERVALS * _ROW.size, b"\0"), part.place(0))
    coarser = _Part(part.offset, part.rank, 2 * part.step_s, part.began_at)
    _write_header(file, coarser)
    return coarser


def _read(file: int, part: _Part, points: int) -> Columns:
    data = os.pread(file, INTERVALS * _ROW.size, part.place(0))
    rows = [(number, _ROW.unpack(data, number * _ROW.size)) for number in range(INTERVALS)]
    used = [(number, cells) for number, cells in rows if any(cell.count for cell in cells)]
    span = used[-1][0] - used[0][0] + 1 if used else 1
    together = max(1, -(-span // max(1, points)))
    return _with_values(
        columns(grouped(used, together), FIELDS, float(part.step_s * together), part.began_at)
    )


def _with_values(found: Columns) -> Columns:
    """Leave out fields without any value: of a GPU, on nodes without one."""
    return Columns(
        found.step_s,
        found.at,
        {name: cells for name, cells in found.fields.items() if any(map(_has_value, cells))},
    )


def _has_value(cell: Cell) -> bool:
    return cell.count > 0
