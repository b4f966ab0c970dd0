"""A rank's snapshots between two calls of mc.checkpoint: when the next one is due, and its writing."""

from __future__ import annotations

import math
import os
import sys
import threading
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from minicluster.runtime.rank.environment import ATTEMPT
from minicluster.train.snapshots import files
from minicluster.train.snapshots.ranks import Ranks
from minicluster.train.snapshots.state import Parts, StagingBuffers
from minicluster.train.snapshots.store import Key, SnapshotStore

SHARE = 0.0125
_LEAST_S = 2.0
"""For small models, whose snapshots disturb the caches and the interpreter more than they take CPU time."""
_GUESSED_BYTES_PER_S = 400e6
_GUESSED_LEAST_S = 0.02


class SnapshotSession:
    """One for each process in a job. calls: how often mc.checkpoint was called."""

    def __init__(self, snapshot_store: SnapshotStore) -> None:
        self.snapshot_store = snapshot_store
        self.ranks = Ranks()
        self.writer = Writer(snapshot_store)
        self.schedule = SnapshotSchedule(_process_began())
        self.attempt = int(os.environ.get(ATTEMPT, "0"))
        self.calls = 0
        self.look_at = 1
        self.cost_told = False


@cache
def session() -> SnapshotSession | None:
    """Return this process's session, None outside of a job."""
    snapshot_store = SnapshotStore.from_environ()
    return None if snapshot_store is None else SnapshotSession(snapshot_store)


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


# When the next snapshot is due, if the cell does not say `every`: pure. The interval follows from the
# measured cost, so that snapshots take at most SHARE of the time.


@dataclass(frozen=True)
class SnapshotPlan:
    """take: make a snapshot at this call. look_at: the number of the call at which to plan again."""

    take: bool
    look_at: int


class SnapshotSchedule:
    """Plans from the times of the calls. `started_at` counts as the time of a snapshot."""

    def __init__(self, started_at: float) -> None:
        self.cost_s = 0.0
        self._taken_at = started_at
        self._first: tuple[int, float] | None = None

    @property
    def interval_s(self) -> float:
        return max(_LEAST_S, self.cost_s / SHARE)

    def plan(self, call: int, now: float, size_bytes: int) -> SnapshotPlan:
        """Say what to do at this call, at the time `now`.

        size_bytes: of the state, from which the first snapshot's cost is guessed.
        """
        self.cost_s = self.cost_s or _GUESSED_LEAST_S + size_bytes / _GUESSED_BYTES_PER_S
        first_call, first_at = self._first = self._first or (call, now)
        step_s = (now - first_at) / (call - first_call) if call > first_call else 0.0
        left_s = self._taken_at + self.interval_s - now
        take = left_s <= step_s / 2
        if take:
            self._taken_at, left_s = now, self.interval_s
        if step_s == 0.0:
            return SnapshotPlan(take, call + 1)
        # Not far beyond what was seen so far: the first steps are slower than the others.
        seen = max(1, call - first_call)
        return SnapshotPlan(take, call + min(seen, max(1, math.floor(left_s / step_s + 0.5))))


# Writes snapshots in the background, one at a time, and measures what they cost.


class Writer:
    """One rank's writer. `cost_s` is what the newest finished snapshot took off the training.

    That is the time for which the cell waited, and the CPU time of the writing: on a machine without
    a core to spare it is missing elsewhere.
    """

    def __init__(self, snapshot_store: SnapshotStore) -> None:
        self.cost_s = 0.0
        self._snapshot_store = snapshot_store
        self._buffers = StagingBuffers()
        self._thread: threading.Thread | None = None
        self._complained = False

    def write(self, parts: Parts, key: Key, world_size: int, keep: int, began: float) -> None:
        """Copy the state and write the copy in the background. `began`: when the cell's wait began."""
        self.wait()
        copies, rest = self._buffers.copy(parts.tensors), parts.rest
        size_bytes, waited_s = parts.size_bytes, time.perf_counter() - began

        def work() -> None:
            cpu_s = time.thread_time()
            try:
                with self._snapshot_store.adding(key, world_size, keep, size_bytes) as folder:
                    files.write(folder, copies, rest)
            except Exception as error:
                if not self._complained:  # Once: training goes on without snapshots.
                    self._complained = True
                    print(f"mc.checkpoint: no snapshot was kept. {error}", file=sys.stderr)  # noqa: T201
            self.cost_s = waited_s + time.thread_time() - cpu_s

        # No daemon: the last snapshot of a cell is finished before its rank leaves.
        self._thread = threading.Thread(target=work, name="minicluster-snapshot")
        self._thread.start()

    def wait(self) -> None:
        """Wait until what was begun is written."""
        if self._thread is not None:
            self._thread.join()
