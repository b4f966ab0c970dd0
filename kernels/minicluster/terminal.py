"""The end of a rank's output as a terminal shows it: carriage returns, no colours, equal lines once."""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass

_ESCAPES = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[PX^_].*?\x1b\\|[ -/]*[0-Z\\-~])"
)
_CUT_ESCAPE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*|\][^\x07\x1b]*|[ -/]*)?$")
_CONTROL = re.compile(r"[\x00-\x07\x0b\x0c\x0e-\x1f\x7f]")
_MOVES = re.compile("([\r\b])")
_LINE_CHARS = 2000


@dataclass
class _Line:
    text: str
    times: int = 1

    def shown(self) -> str:
        return self.text if self.times == 1 else f"{self.text}  (×{self.times})"


@dataclass(frozen=True)
class TailChange:
    """Lines of a tail from the absolute number `start` on; those before `first` are gone."""

    first: int
    start: int
    lines: tuple[str, ...]


class TerminalTail:
    """The last lines of one stream, bounded in lines and in bytes however much is fed."""

    def __init__(self, max_lines: int = 200, max_bytes: int = 64 * 1024) -> None:
        self._max_lines = max_lines
        self._max_bytes = max_bytes
        self._done: deque[_Line] = deque()
        self._done_bytes = 0
        self._first = 0
        self._open = ""
        self._cursor = 0
        self._held = ""
        self._changed_from = 0

    def feed(self, text: str) -> None:
        """Take what the stream printed next, cut anywhere."""
        # Text that cannot be seen any more is not worth its parsing.
        text = self._held + text[-4 * self._max_bytes :]
        cut = _CUT_ESCAPE.search(text)
        self._held = text[cut.start() :] if cut and len(text) - cut.start() < 100 else ""
        text = _ESCAPES.sub("", text[: len(text) - len(self._held)])
        *ended, last = text.split("\n")
        for part in ended:
            self._write(part)
            self._end_line()
        self._write(last)
        self._changed_from = min(self._changed_from, self._open_number)

    def lines(self) -> list[str]:
        shown = [line.shown() for line in self._done]
        return [*shown, self._open] if self._open else shown

    def finished(self) -> tuple[int, list[str]]:
        """Return the absolute number of the first line kept, and the lines that have ended."""
        return self._first, [line.text for line in self._done]

    def take_change(self) -> TailChange | None:
        """Return what changed since the last call, None when nothing did."""
        start = max(self._changed_from, self._first)
        lines = tuple(self.lines()[start - self._first :])
        if self._changed_from > self._open_number or (not lines and start == self._open_number):
            return None
        self._changed_from = self._open_number + 1
        return TailChange(self._first, start, lines)

    def whole(self) -> TailChange:
        return TailChange(self._first, self._first, tuple(self.lines()))

    @property
    def _open_number(self) -> int:
        return self._first + len(self._done)

    def _write(self, text: str) -> None:
        """Write into the open line from the cursor on, which returns and backspaces move."""
        for part in _MOVES.split(text):
            if part == "\r":
                self._cursor = 0
            elif part == "\b":
                self._cursor = max(0, self._cursor - 1)
            elif part := _CONTROL.sub("", part)[: max(0, _LINE_CHARS - self._cursor)]:
                end = self._cursor + len(part)
                self._open = self._open[: self._cursor] + part + self._open[end:]
                self._cursor = end

    def _end_line(self) -> None:
        text, self._open, self._cursor = self._open, "", 0
        if text and self._done and self._done[-1].text == text:
            self._done[-1].times += 1
            self._changed_from = min(self._changed_from, self._open_number - 1)
            return
        self._changed_from = min(self._changed_from, self._open_number)
        self._done.append(_Line(text))
        self._done_bytes += len(text.encode())
        while len(self._done) > self._max_lines or self._done_bytes > self._max_bytes:
            self._done_bytes -= len(self._done.popleft().text.encode())
            self._first += 1
