"""A rank's stack, read from outside, whatever the rank does: in an all-reduce, in a loop, frozen.

In the rank, faulthandler handles a real-time signal. It is C code and needs no lock of Python's, so it
also answers where Python itself is stuck. The answer goes into a file, which the agent reads. It has the main
thread alone, which the signal interrupts: other threads may run meanwhile, and reading the frames of one that
runs ends the process.
"""

from __future__ import annotations

import contextlib
import faulthandler
import fcntl
import json
import os
import re
import signal
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from minicluster.runtime.paths import write_whole
from minicluster.wire import StackFrame

DUMP_SIGNAL = int(signal.SIGRTMAX) - 2
"""Hardly used by others: the C library takes the first ones, tools take SIGUSR1 and SIGUSR2."""
FRAMES = "frames"
"""A key of error files: where the exception was raised."""
_FD_FROM = 210
_OWN_FOLDER = str(Path(__file__).parents[1])
_MOST_FRAMES = 60
_HEAD = "Stack (most recent call first):"
_FRAME = re.compile(r'^  File "(.*)", line (\d+) in (.*)$')
_OUTERMOST = ("<module>", "_run_module_as_main")
"""Functions that a main thread begins with."""


# --- in the rank ------------------------------------------------------------------------------


def listen(path: Path) -> None:
    """Have this process and those that it forks answer the signal into a file. Raises OSError."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o600)
    high = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _FD_FROM)
    os.close(fd)
    faulthandler.register(DUMP_SIGNAL, file=high, all_threads=False, chain=False)
    # Where a rank was when it was ended shows which rank waited for which.
    faulthandler.register(signal.SIGTERM, file=high, all_threads=False, chain=True)
    os.register_at_fork(after_in_child=_dump_nothing_at_sigterm)


def _dump_nothing_at_sigterm() -> None:
    """Have SIGTERM end a forked child without a stack dump. The cell's own handler stays."""
    if signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
        faulthandler.unregister(signal.SIGTERM)


def store_cell(path: Path, filename: str, source: str) -> None:
    """Store the cell's text for the agent, which does not open the payload."""
    with contextlib.suppress(OSError):
        write_whole(path, json.dumps({"filename": filename, "source": source}).encode())


# --- in the agent -----------------------------------------------------------------------------


@dataclass(frozen=True)
class CellText:
    """What tracebacks call the cell, and its lines."""

    filename: str = ""
    lines: tuple[str, ...] = ()

    @classmethod
    def read(cls, path: Path) -> CellText:
        """Read what `store_cell` wrote, nothing while it is not there."""
        try:
            data = json.loads(path.read_bytes())
        except (OSError, ValueError):
            return cls()
        return cls(_as_written(data["filename"]), tuple(data["source"].splitlines()))

    def line(self, number: int) -> str:
        return self.lines[number - 1].strip()[:200] if 0 < number <= len(self.lines) else ""


def answers(pid: int) -> bool:
    """Return whether a process handles the signal, which would end a process without a handler."""
    return bool(_mask(pid, "SigCgt") >> (DUMP_SIGNAL - 1) & 1)


def is_pending(pid: int) -> bool:
    """Return whether the signal is pending for the process."""
    return bool(_mask(pid, "ShdPnd") >> (DUMP_SIGNAL - 1) & 1)


def answer(path: Path, offset: int, cell: CellText) -> tuple[StackFrame, ...]:
    """Return the frames of what a rank wrote from there on."""
    try:
        return parse(path.read_bytes()[offset:].decode("utf-8", "replace"), cell)
    except OSError:
        return ()


def of_account(account: Mapping[str, Any] | None, cell: CellText) -> tuple[StackFrame, ...]:
    """Return the frames of an exception, from a rank's error file."""
    message = (account or {}).get("message")
    extra = message.get("extraInfo") if isinstance(message, dict) else None
    frames = extra.get(FRAMES, ()) if isinstance(extra, dict) else ()
    return tuple(_frame(_as_written(file), line, function, cell) for file, line, function in frames)


def frames_of(error: BaseException) -> list[tuple[str, int, str]]:
    """Return file, line and function of an exception's calls, the innermost first."""
    calls = traceback.extract_tb(error.__traceback__)[::-1]
    own = [call for call in calls if not call.filename.startswith(_OWN_FOLDER)]
    return [(call.filename, call.lineno or 0, call.name) for call in own[:_MOST_FRAMES]]


def size(path: Path) -> int:
    with contextlib.suppress(OSError):
        return path.stat().st_size
    return 0


def is_whole(text: str) -> bool:
    """Return whether a text of faulthandler ends with the outermost frame."""
    lines = text.splitlines()
    frame = _FRAME.match(lines[-1]) if lines and text.endswith("\n") else None
    return bool(frame and frame[3] in _OUTERMOST)


def parse(text: str, cell: CellText) -> tuple[StackFrame, ...]:
    """Return the frames of the last stack in faulthandler's text, the innermost first."""
    found = map(_FRAME.match, text.rpartition(_HEAD)[2].splitlines())
    frames = [_frame(frame[1], int(frame[2]), frame[3], cell) for frame in found if frame]
    return tuple(frame for frame in frames if not frame.file.startswith(_OWN_FOLDER))[:_MOST_FRAMES]


def _frame(file: str, line: int, function: str, cell: CellText) -> StackFrame:
    own = bool(cell.filename) and file == cell.filename
    text = cell.line(line) if own else ""
    return StackFrame(file=file[-512:], line=line, function=function[-512:], cell=own, text=text)


def _as_written(name: str) -> str:
    """Return a file's name as faulthandler writes it: non-ASCII characters are escaped."""
    return name.encode("ascii", "backslashreplace").decode()


def _mask(pid: int, name: str) -> int:
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith(f"{name}:"):
                return int(line.split()[1], 16)
    return 0
