"""All points of a run as CSV or JSON, in pieces of bounded size."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterable, Iterator

COLUMNS = ("name", "rank", "step", "at", "value")
_ROWS = 2000
Row = tuple[str, int, float, float, float]


def as_csv(points: Iterable[Row]) -> Iterator[str]:
    """Yield a table with a header. NaN and infinities are written as `nan`, `inf` and `-inf`."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    for number, (name, *numbers) in enumerate(points, 1):
        writer.writerow((_harmless(name), *numbers))
        if number % _ROWS == 0:
            yield out.getvalue()
            out.seek(0)
            out.truncate()
    yield out.getvalue()


def as_json(points: Iterable[Row]) -> Iterator[str]:
    """Yield a list of objects; numbers that JSON does not have are null."""
    lead = "[\n"
    piece: list[str] = []
    for point in points:
        named = dict(zip(COLUMNS, point, strict=True))
        piece.append(lead + json.dumps({name: _finite(value) for name, value in named.items()}))
        lead = ",\n"
        if len(piece) == _ROWS:
            yield "".join(piece)
            piece.clear()
    yield "".join(piece) + ("[]\n" if lead == "[\n" else "\n]\n")


def _finite(value: object) -> object:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _harmless(name: str) -> str:
    """Return a name that no spreadsheet takes for a formula."""
    return f"'{name}" if name[:1] in "=+-@\t\r" else name
