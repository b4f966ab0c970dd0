"""Cutting bytes of a stream where text and records can be cut: pure."""

from __future__ import annotations

import codecs
from typing import TypeVar

from pydantic import BaseModel, ValidationError

M = TypeVar("M", bound=BaseModel)
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


def whole_lines(kind: type[M], data: bytes, *, final: bool) -> tuple[tuple[M, ...], int]:
    """Return the messages of the whole lines of `data` and how many bytes these took.

    A line that is no such message (a newer agent's, say) is left out. Of data without any end of a line,
    `final` takes all, else nothing is taken.
    """
    end = data.rfind(b"\n") + 1 or (len(data) if final else 0)
    messages = (_message(kind, line) for line in data[:end].splitlines() if line)
    return tuple(message for message in messages if message is not None), end


def _message(kind: type[M], line: bytes) -> M | None:
    try:
        return kind.model_validate_json(line)
    except ValidationError:
        return None
