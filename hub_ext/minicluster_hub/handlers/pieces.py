"""Cutting bytes of a stream where text and records can be cut: pure."""

from __future__ import annotations

import codecs

from pydantic import ValidationError

from minicluster.wire import Record

_LINE_SEARCH_BYTES = 8192


def whole_text(data: bytes, *, final: bool) -> tuple[str, int]:
    """Return the text of `data` and how many bytes it took.

    A character that is cut at the end waits for its rest, unless there will be none (`final`).
    """
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    text = decoder.decode(data, final=final)
    return text, len(data) - len(decoder.getstate()[0])


def line_start(data: bytes) -> int:
    """Return how many bytes to leave out so that `data` starts at a line, else at a character."""
    found = data.find(b"\n", 0, _LINE_SEARCH_BYTES)
    if 0 <= found < len(data) - 1:
        return found + 1
    return next((at for at in range(min(4, len(data))) if not 0x80 <= data[at] < 0xC0), 0)


def whole_records(data: bytes, *, final: bool) -> tuple[tuple[Record, ...], int]:
    """Return the records of the whole lines of `data` and how many bytes these took.

    A line that is no record (a newer agent's, say) is left out.
    """
    end = len(data) if final else data.rfind(b"\n") + 1
    records = (_record(line) for line in data[:end].splitlines() if line)
    return tuple(record for record in records if record is not None), end


def _record(line: bytes) -> Record | None:
    try:
        return Record.model_validate_json(line)
    except ValidationError:
        return None
