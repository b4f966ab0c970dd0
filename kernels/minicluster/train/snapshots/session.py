"""What this rank knows of its job's snapshots between two calls of mc.checkpoint."""

from __future__ import annotations

import os
import time
from functools import cache
from pathlib import Path

from minicluster.runtime.rank.environment import ATTEMPT

from minicluster.train.snapshots.pace import Pace
from minicluster.train.snapshots.ranks import Ranks
from minicluster.train.snapshots.store import Shelf
from minicluster.train.snapshots.writer import Writer


class Session:
    """One for each process in a job. calls: how often mc.checkpoint was called."""

    def __init__(self, shelf: Shelf) -> None:
        self.shelf = shelf
        self.ranks = Ranks()
        self.writer = Writer(shelf)
        self.pace = Pace(_process_began())
        self.attempt = int(os.environ.get(ATTEMPT, "0"))
        self.calls = 0
        self.look_at = 1
        self.cost_told = False


@cache
def session() -> Session | None:
    """Return this process's session, None outside of a job."""
    shelf = Shelf.from_environ()
    return None if shelf is None else Session(shelf)


def finish_writing() -> None:
    """Wait until no snapshot is being written: a process forked meanwhile would inherit locks that
    nobody frees."""
    if session.cache_info().currsize and (here := session()):
        here.writer.wait()


def _process_began() -> float:
    """Return when this process was started, on the clock of time.monotonic()."""
    ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    return time.monotonic() - age_s
