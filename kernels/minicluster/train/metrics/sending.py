"""Writes a rank's records into the pipe that its agent reads: one JSON line each, whole and in order."""

from __future__ import annotations

import functools
import json
import math
import os
import stat
import threading
import time
from collections.abc import Mapping
from contextlib import suppress

from minicluster.train.live.settings import LIVE_RANK
from minicluster.wire import Record

_RECORDS_FD = "MINICLUSTER_RECORDS_FD"
_REMEMBERED_NAMES = 4096

SPACING_S = 0.1
"""Least time between two writes of numbers: each wakes the agent, which may need the core that computes."""
_MOST_LINES = 500
Logged = tuple[int, float, float | None, Mapping[str, float]]
"""One call of mc.log: rank, time, step, values."""


class Writer:
    """Writes lines in order: those of numbers soon, in a thread that also puts their text together.

    After a step of training all of Python is out of the processor's caches, so that each call here counts.
    """

    def __init__(self, spacing_s: float = SPACING_S) -> None:
        self._spacing_s = spacing_s
        self._waiting: list[bytes | Logged] = []
        self._data = bytearray()
        self._written_at = 0.0
        self._lock = threading.RLock()
        self._some = threading.Event()
        self._thread: threading.Thread | None = None

    def add(self, line: bytes | Logged) -> None:
        """Write a line soon."""
        with self._lock:
            self._waiting.append(line)
            count = len(self._waiting)
        if count > _MOST_LINES or not self._spacing_s:
            self.flush()
        elif count == 1:
            self._wake()

    def flush(self) -> None:
        """Write what waits; outside of a job, drop it."""
        with self._lock:
            self._written_at = time.monotonic()
            lines, self._waiting = self._waiting, []
            pipe = _pipe()
            if pipe is None:
                self._data.clear()
                return
            self._data += b"".join(line if isinstance(line, bytes) else log_line(*line) for line in lines)
            while self._data:
                # What an interrupt leaves is written by the next call: lines stay whole.
                del self._data[: os.write(pipe, self._data)]

    def _wake(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._follow, daemon=True, name="minicluster-records")
            self._thread.start()
        self._some.set()

    def _follow(self) -> None:
        while True:
            self._some.wait()
            self._some.clear()
            time.sleep(max(0.0, self._written_at + self._spacing_s - time.monotonic()))
            with suppress(OSError):  # The agent is gone.
                self.flush()


_writer = Writer()


_rank: int | None = None
"""Of this process, if it is a rank itself: after a step, a look at the environment takes long."""


def begin() -> None:
    """Take this process's rank from the environment: it is a rank, or has become another one."""
    global _rank
    _rank = _told_rank()


def in_job() -> bool:
    """Return whether something reads what this process sends."""
    return _pipe() is not None


def own_rank() -> int:
    """Return this process's rank, as mc.rank() does, without its checks."""
    return _told_rank() if _rank is None else _rank


def _told_rank() -> int:
    return int(os.environ.get(LIVE_RANK) or os.environ.get("RANK") or 0)


def send(record: Record) -> None:
    """Write a record now, behind what waits; outside of a job, do nothing."""
    _writer.add(record.model_dump_json(exclude_defaults=True).encode() + b"\n")
    _writer.flush()


def write(line: bytes | Logged) -> None:
    """Write a line, or a call of mc.log, soon; outside of a job, do nothing."""
    if _rank is not None or os.environ.get(_RECORDS_FD):
        _writer.add(line)


def flush() -> None:
    """Write what waits."""
    _writer.flush()


def _pipe() -> int | None:
    fd = int(os.environ.get(_RECORDS_FD) or -1)
    try:
        # A program started by the cell inherits the variable, but not the pipe.
        return fd if fd >= 0 and stat.S_ISFIFO(os.fstat(fd).st_mode) else None
    except OSError:
        return None


def log_line(rank: int, at: float, step: float | None, values: Mapping[str, float]) -> bytes:
    """Return the line of a Record of kind "log".

    It is put together by hand: the message's own way takes three times as long, in each step of a training.
    """
    numbers = ",".join([f"{_quoted(name)}:{_number(value)}" for name, value in values.items()])
    position = "" if step is None else f',"step":{_number(step)}'
    return f'{{"kind":"log","rank":{rank},"at":{at!r}{position},"values":{{{numbers}}}}}\n'.encode()


@functools.lru_cache(_REMEMBERED_NAMES)
def _quoted(name: str) -> str:
    return json.dumps(name)


def _number(value: float) -> str:
    if math.isfinite(value):
        return repr(value)
    return '"NaN"' if math.isnan(value) else '"Infinity"' if value > 0 else '"-Infinity"'


def _forget_lines() -> None:
    # A forked child must not write what its parent will write. It may end at any time without a word.
    global _writer
    _writer = Writer(spacing_s=0.0)


os.register_at_fork(after_in_child=_forget_lines)
