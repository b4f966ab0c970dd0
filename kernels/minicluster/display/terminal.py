"""The last lines of a rank's output, as a terminal shows them: carriage returns and colours are applied.

A line repeated in a row is shown once. A displayed figure or table is an entry between the lines; see
wire/streams.py.
"""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass

from minicluster.display.ansi import COLOUR, PLAIN, RESET, Pen
from minicluster.wire.streams import MARK

_TOKENS = re.compile(
    rf"(?=[\x00-\x1f\x7f])(?:(?P<mark>{MARK.pattern})|(?P<colour>{COLOUR.pattern})|(?P<erase>\x1b\[[02]?K)"
    r"|(?P<move>[\r\b\n])"
    r"|(?P<other>\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[PX^_][^\x1b]*\x1b\\"
    r"|[ -/]*[0-Z\\-~])|[\x00-\x07\x0b\x0c\x0e-\x1f\x7f]))"
)
_CUT_ESCAPE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*|\][^\x07\x1b]*|[PX^_][^\x1b]*\x1b?|[ -/]*)?$")
_PLAIN_MOVES = re.compile("([\r\b])")
_CONTROL = re.compile(r"[\x00-\x07\x0b\x0c\x0e-\x1f\x7f]")
_SAME = re.compile(r"(.)\1*", re.DOTALL)
_MOST_PENS = 200
_MOST_STEPS = 2000
_LINE_CHARS = 2000
_DISPLAY_CHARS = 20_000


@dataclass(frozen=True)
class DisplayLine:
    """An entry for a displayed object. text: its form in a terminal."""

    id: str
    text: str


@dataclass
class _TailLine:
    text: str
    times: int = 1
    display: str = ""

    def shown(self) -> str:
        return self.text if self.times == 1 else f"{self.text}  (×{self.times})"

    def entry(self) -> str | DisplayLine:
        return DisplayLine(self.display, self.text) if self.display else self.shown()


@dataclass(frozen=True)
class TailChange:
    """Entries that changed, from absolute number `start` on; entries before `first` were dropped."""

    first: int
    start: int
    lines: tuple[str | DisplayLine, ...]


class _OpenLine:
    """The unfinished line. _drawn: for each character the number of its pen, stored as a character."""

    def __init__(self) -> None:
        self._pens = [PLAIN]
        self._sequences = [""]
        self._number = 0
        self._next: dict[tuple[int, str], int] = {}
        self.clear()

    def clear(self) -> None:
        self._text = self._drawn = ""
        self.cursor = 0

    def take_pen(self, parameters: str) -> None:
        """Apply an SGR sequence to the pen."""
        step = self._number, parameters
        if step not in self._next:
            self._next[step] = self._number_of(self._pens[self._number].after(parameters))
        self._number = self._next[step]

    def _number_of(self, pen: Pen) -> int:
        """Return a pen's number; beyond the limit (gradients use many pens), that of the plain pen."""
        if len(self._next) >= _MOST_STEPS:
            self._next.clear()
        if pen not in self._pens and len(self._pens) < _MOST_PENS:
            self._pens.append(pen)
            self._sequences.append(pen.sequence())
        return self._pens.index(pen) if pen in self._pens else 0

    def write(self, part: str) -> None:
        """Overwrite the line from the cursor on."""
        part = part[: max(0, _LINE_CHARS - self.cursor)]
        end = self.cursor + len(part)
        if self._number or self._drawn:
            drawn = self._drawn.ljust(len(self._text), "\0")
            self._drawn = drawn[: self.cursor] + chr(self._number) * len(part) + drawn[end:]
        self._text = self._text[: self.cursor] + part + self._text[end:]
        self.cursor = end

    def erase(self, *, all_of_it: bool) -> None:
        """Remove the text after the cursor, or all of it."""
        end = 0 if all_of_it else self.cursor
        self._text, self._drawn = self._text[:end], self._drawn[:end]

    def text(self) -> str:
        """Return the line with escape sequences for its colours; each coloured piece ends with a reset."""
        if not self._drawn:
            return self._text
        return "".join(self._piece(run) for run in _SAME.finditer(self._drawn.ljust(len(self._text), "\0")))

    def _piece(self, run: re.Match[str]) -> str:
        part, sequence = self._text[run.start() : run.end()], self._sequences[ord(run[1])]
        return f"{sequence}{part}{RESET}" if sequence else part


class TerminalTail:
    """The last lines of one stream, bounded in lines and bytes."""

    def __init__(self, max_lines: int = 200, max_bytes: int = 64 * 1024) -> None:
        self._max_lines = max_lines
        self._max_bytes = max_bytes
        self._done: deque[_TailLine] = deque()
        self._done_bytes = 0
        self._first = 0
        self._open = _OpenLine()
        self._held = ""
        self._changed_from = 0
        self._display: _TailLine | None = None
        self._clear_next = False
        self._cleared = False

    def feed(self, text: str) -> None:
        """Process the next piece of output; it may end in the middle of a line or sequence."""
        # Do not parse text that would be dropped at once.
        most = 4 * self._max_bytes
        if len(text) > most:
            self.cut()
        text = self._held + text[-most:]
        cut = _CUT_ESCAPE.search(text)
        self._held = text[cut.start() :] if cut and len(text) - cut.start() < 100 else ""
        text = text[: len(text) - len(self._held)]
        if "\x1b" in text or self._display is not None:
            self._feed_tokens(text)
        else:
            self._feed_plain(text)
        self._changed_from = min(self._changed_from, self._open_number)

    def cut(self) -> None:
        """End the open line, colours and display, since output was lost here or the process ended."""
        self._held = ""
        self._end_display()
        if self._open.text():
            self._end_line()
        self._open.take_pen("0")

    def _feed_plain(self, text: str) -> None:
        """Process text without colours and displays; this fast path handles most text."""
        *ended, last = text.split("\n")
        for part in ended:
            self._move_and_write(part)
            self._end_line()
        self._move_and_write(last)

    def _move_and_write(self, text: str) -> None:
        for part in _PLAIN_MOVES.split(text):
            if part in ("\r", "\b"):
                self._move(part)
            else:
                self._write(_CONTROL.sub("", part))

    def _feed_tokens(self, text: str) -> None:
        at = 0
        for token in _TOKENS.finditer(text):
            self._write(text[at : token.start()])
            self._take(token)
            at = token.end()
        self._write(text[at:])

    def lines(self) -> list[str]:
        """Return each entry as text; a display may have several lines."""
        return [entry.text if isinstance(entry, DisplayLine) else entry for entry in self.entries()]

    def entries(self) -> list[str | DisplayLine]:
        """Return the lines, and the displays between them."""
        done = [line.entry() for line in self._done]
        text = self._open.text()
        return [*done, text] if text else done

    def finished(self) -> tuple[int, list[str]]:
        """Return the absolute number of the first line, and the complete lines."""
        return self._first, [line.text for line in self._done]

    def take_change(self) -> TailChange | None:
        """Return the change since the last call, None if there is none."""
        start = max(self._changed_from, self._first)
        entries = tuple(self.entries()[start - self._first :])
        nothing = not entries and start == self._open_number and not self._cleared
        if self._changed_from > self._open_number or nothing:
            return None
        self._changed_from, self._cleared = self._open_number + 1, False
        return TailChange(self._first, start, entries)

    def whole(self) -> TailChange:
        return TailChange(self._first, self._first, tuple(self.entries()))

    def changed(self, display_id: str) -> None:
        """Mark a display as changed."""
        for number, line in enumerate(self._done, self._first):
            if line.display == display_id:
                self._changed_from = min(self._changed_from, number)
                return

    @property
    def _open_number(self) -> int:
        return self._first + len(self._done)

    def _take(self, token: re.Match[str]) -> None:
        if token["mark"]:
            self._take_mark(token["mark"])
        elif self._display is not None:
            if token["move"]:
                self._write("\n" if token["move"] == "\n" else "")
        elif token["colour"]:
            self._open.take_pen(token["colour"][2:-1])
        elif token["erase"]:
            self._open.erase(all_of_it="2" in token["erase"])
            self._cleared = self._cleared or not self._open.text()
        elif token["move"] == "\n":
            self._end_line()
        elif token["move"]:
            self._move(token["move"])

    def _move(self, how: str) -> None:
        self._open.cursor = 0 if how == "\r" else max(0, self._open.cursor - 1)

    def _take_mark(self, mark: str) -> None:
        found = MARK.fullmatch(mark)
        kind = found and (found[1] or found[3])
        if kind == "clear":
            self._clear()
        elif kind == "clear-next":
            self._clear_next = True
        elif kind == "display" and found:
            self._make_room()
            if self._open.text():
                self._end_line()
            self._display = _TailLine("", display=found[2])
        elif kind == "end":
            self._end_display()

    def _end_display(self) -> None:
        line, self._display = self._display, None
        if line is not None:
            line.text = line.text.removesuffix("\n")
            self._keep(line)

    def _write(self, text: str) -> None:
        if not text:
            return
        if self._display is None:
            self._make_room()
            self._open.write(text)
        elif len(self._display.text) < _DISPLAY_CHARS:
            self._display.text += text

    def _end_line(self) -> None:
        text = self._open.text()
        self._open.clear()
        if text and self._done and self._done[-1].text == text and not self._done[-1].display:
            self._done[-1].times += 1
            self._changed_from = min(self._changed_from, self._open_number - 1)
            return
        self._keep(_TailLine(text))

    def _keep(self, line: _TailLine) -> None:
        self._changed_from = min(self._changed_from, self._open_number)
        self._done.append(line)
        self._done_bytes += len(line.text.encode())
        # Always keep the newest entry, even if it exceeds the limit.
        while len(self._done) > 1 and (
            len(self._done) > self._max_lines or self._done_bytes > self._max_bytes
        ):
            self._done_bytes -= len(self._done.popleft().text.encode())
            self._first += 1

    def _make_room(self) -> None:
        if self._clear_next:
            self._clear()

    def _clear(self) -> None:
        """Drop all lines, for clear_output()."""
        self._clear_next, self._cleared = False, True
        self._open.clear()
        self._first += len(self._done)
        self._done.clear()
        self._done_bytes = 0
        self._changed_from = min(self._changed_from, self._first)
