"""What both sides of bench/recovery.py have in common: faults by signals, steps in logs, figures."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import psutil

NEVER_S = 120.0
"""Who has made no step after this time is said to go on never."""
SIGNALS = {"killed": signal.SIGKILL, "frozen": signal.SIGSTOP}


@dataclass(frozen=True)
class Recovery:
    """seconds: from the fault to the next step of the next attempt. lost_steps: how many were done again."""

    fault: str
    first: bool
    seconds: float
    lost_steps: int
    never: bool = False


def strike(processes: Sequence[psutil.Process], fault: str) -> float:
    """Have all of a node's processes killed or frozen; return when."""
    struck_at = time.time()
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.send_signal(SIGNALS[fault])
    return struck_at


def parse_steps(text: str) -> list[tuple[int, float]]:
    """Return (step, when) of each line that tells of one."""
    lines = [line.split() for line in text.splitlines()]
    return [
        (int(fields[1]), float(fields[2])) for fields in lines if fields[:1] == ["step"] and len(fields) == 3
    ]


def until(seen: Callable[[], object], within_s: float, what: str) -> None:
    """Wait for something. Raises TimeoutError."""
    end = time.monotonic() + within_s
    while not seen():
        if time.monotonic() > end:
            raise TimeoutError(f"after {within_s:g} s still no {what}")
        time.sleep(0.05)
