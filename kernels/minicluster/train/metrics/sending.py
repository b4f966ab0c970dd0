"""Writes a rank's records into the pipe that its agent reads: one JSON line each, whole and in order."""

from __future__ import annotations

import functools
import json
import math
import os
import stat
import threading
from collections.abc import Mapping

from minicluster.train.live.settings import LIVE_RANK
from minicluster.wire import Record

_RECORDS_FD = "MINICLUSTER_RECORDS_FD"
_REMEMBERED_NAMES = 4096

_writing = threading.Lock()
"""Held while a line is written: a pipe takes only short lines at once."""


def in_job() -> bool:
    """Return whether something reads what this process sends."""
    return _pipe() is not None


def own_rank() -> int:
    """Return this process's rank, as mc.rank() does, without its checks."""
    return int(os.environ.get(LIVE_RANK) or os.environ.get("RANK") or 0)


def send(record: Record) -> None:
    """Write a record; outside of a job, do nothing."""
    write(record.model_dump_json(exclude_defaults=True).encode() + b"\n")


def write(line: bytes) -> None:
    """Write a line; outside of a job, do nothing."""
    pipe = _pipe()
    if pipe is None:
        return
    rest = memoryview(line)
    with _writing:
        while rest:
            rest = rest[os.write(pipe, rest) :]


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


def _forget_writers() -> None:
    global _writing
    _writing = threading.Lock()


# In a forked child, the thread that held the lock is not there.
os.register_at_fork(after_in_child=_forget_writers)
