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
_MOST_BYTES = 1 << 16


class Writer:
    """Writes lines in order. Numbers wait for up to SPACING_S, if others were written just before."""

    def __init__(self, spacing_s: float = SPACING_S) -> None:
        self._spacing_s = spacing_s
        self._data = bytearray()
        self._written_at = 0.0
        self._lock = threading.RLock()
        self._some = threading.Event()
        self._thread: threading.Thread | None = None

    def add(self, line: bytes) -> None:
        """Write a line soon."""
        with self._lock:
            first = not self._data
            self._data += line
            if len(self._data) > _MOST_BYTES or time.monotonic() - self._written_at >= self._spacing_s:
                self.flush()
                return
        if first:
            self._wake()

    def flush(self) -> None:
        """Write what waits; outside of a job, drop it."""
        with self._lock:
            self._written_at = time.monotonic()
            pipe = _pipe()
            if pipe is None:
                self._data.clear()
            while self._data:
                # What an interrupt leaves is written by the next call: lines stay whole.
                del self._data[: os.write(pipe, self._data)]  # type: ignore[arg-type]

    def _wake(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._follow, daemon=True, name="minicluster-records")
            self._thread.start()
        self._some.set()

    def _follow(self) -> None:
        while True:
            self._some.wait()
            self._some.clear()
            time.sleep(self._spacing_s)
            with suppress(OSError):  # The agent is gone.
                self.flush()


_writer = Writer()


def in_job() -> bool:
    """Return whether something reads what this process sends."""
    return _pipe() is not None


def own_rank() -> int:
    """Return this process's rank, as mc.rank() does, without its checks."""
    return int(os.environ.get(LIVE_RANK) or os.environ.get("RANK") or 0)


def send(record: Record) -> None:
    """Write a record now, behind what waits; outside of a job, do nothing."""
    _writer.add(record.model_dump_json(exclude_defaults=True).encode() + b"\n")
    _writer.flush()


def write(line: bytes) -> None:
    """Write a line soon; outside of a job, do nothing."""
    if os.environ.get(_RECORDS_FD):
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
