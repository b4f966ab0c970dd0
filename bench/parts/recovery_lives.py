"""Shared by both sides of bench/recovery.py: faults by signals, steps in logs, figures."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import psutil

NEVER_S = 120.0
"""A training without a step for this long counts as never recovered."""
SIGNALS = {"killed": signal.SIGKILL, "frozen": signal.SIGSTOP}


@dataclass(frozen=True)
class Recovery:
    """seconds: from the fault to the first step of the next attempt. lost_steps: number of repeated steps."""

    fault: str
    first: bool
    seconds: float
    lost_steps: int
    never: bool = False


def strike(processes: Sequence[psutil.Process], fault: str) -> float:
    """Kill or freeze all of a node's processes; return the time."""
    struck_at = time.time()
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.send_signal(SIGNALS[fault])
    return struck_at


def parse_steps(text: str) -> list[tuple[int, float]]:
    """Return (step, time) of each line that reports a step."""
    lines = [line.split() for line in text.splitlines()]
    return [
        (int(fields[1]), float(fields[2])) for fields in lines if fields[:1] == ["step"] and len(fields) == 3
    ]


def until(seen: Callable[[], object], within_s: float, what: str) -> None:
    """Wait until `seen` is true. Raises TimeoutError."""
    end = time.monotonic() + within_s
    while not seen():
        if time.monotonic() > end:
            raise TimeoutError(f"after {within_s:g} s still no {what}")
        time.sleep(0.05)
