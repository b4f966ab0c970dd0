"""A rank's state across calls of mc.checkpoint: when the next snapshot is due, and its background writer."""

from __future__ import annotations

import math
import os
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from minicluster.runtime.rank.environment import ATTEMPT
from minicluster.train import place
from minicluster.train.snapshots.state import Parts, StagingBuffers, write_files
from minicluster.train.snapshots.store import Key, SnapshotStore

SHARE = 0.0125
_LEAST_S = 2.0
"""Minimum interval. Small models need it: their snapshots slow training by more than their CPU time."""
_GUESSED_BYTES_PER_S = 400e6
_GUESSED_LEAST_S = 0.02


class SnapshotSession:
    """The snapshots of one process in a job. calls: number of calls of mc.checkpoint."""

    def __init__(self, snapshot_store: SnapshotStore) -> None:
        self.snapshot_store = snapshot_store
        self.ranks = Ranks()
        self.writer = Writer(snapshot_store)
        self.schedule = SnapshotSchedule(_process_began())
        self.attempt = int(os.environ.get(ATTEMPT, "0"))
        self.calls = 0
        self.plan_at = 1
        self.cost_told = False
        self._parts_writer: Any = None

    @property
    def parts_writer(self) -> Any:
        """The writer of a divided model's parts; it is imported where there is one."""
        if self._parts_writer is None:
            from minicluster.train.snapshots.divided import PartsWriter

            self._parts_writer = PartsWriter()
        return self._parts_writer

    @property
    def cost_s(self) -> float:
        """Training time that the newest finished snapshot cost; 0: none has finished."""
        return self._parts_writer.cost_s if self._parts_writer else self.writer.cost_s

    def wait(self) -> None:
        """Wait until no snapshot is being written."""
        self.writer.wait()
        if self._parts_writer:
            self._parts_writer.wait()


@cache
def session() -> SnapshotSession | None:
    """Return this process's session; None outside of a job."""
    snapshot_store = SnapshotStore.from_environ()
    return None if snapshot_store is None else SnapshotSession(snapshot_store)


def finish_writing() -> None:
    """Wait until no snapshot is being written: a process forked during a write would inherit locks that
    nobody releases."""
    if session.cache_info().currsize and (here := session()):
        here.wait()


def _process_began() -> float:
    """Return this process's start time, on the clock of time.monotonic()."""
    ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    return time.monotonic() - age_s


# Computes when the next snapshot is due if the cell does not set `every`; has no side effects. The interval
# follows from the measured cost, so that snapshots take at most SHARE of the time.


@dataclass(frozen=True)
class SnapshotPlan:
    """take: save a snapshot at this call. plan_at: number of the call at which to plan again."""

    take: bool
    plan_at: int


class SnapshotSchedule:
    """Plans from the times of calls. `started_at` counts as a snapshot's time."""

    def __init__(self, started_at: float) -> None:
        self.cost_s = 0.0
        self._taken_at = started_at
        self._first: tuple[int, float] | None = None

    @property
    def interval_s(self) -> float:
        return max(_LEAST_S, self.cost_s / SHARE)

    def plan(self, call: int, now: float, size_bytes: int) -> SnapshotPlan:
        """Return what to do at this call, at the time `now`.

        size_bytes: size of the state; it gives an estimate of the first snapshot's cost.
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
        # Plan only as many calls ahead as were seen, since the first steps are slower than later ones.
        seen = max(1, call - first_call)
        return SnapshotPlan(take, call + min(seen, max(1, math.floor(left_s / step_s + 0.5))))


# Writes snapshots in the background, one at a time, and measures their cost.


class Writer:
    """One rank's writer. `cost_s`: training time that the newest finished snapshot cost.

    It is the time for which the cell waited, plus the CPU time of writing, which a machine without idle
    cores takes from the training.
    """

    def __init__(self, snapshot_store: SnapshotStore) -> None:
        self.cost_s = 0.0
        self._snapshot_store = snapshot_store
        self._buffers = StagingBuffers()
        self._thread: threading.Thread | None = None
        self._complained = False

    def write(self, parts: Parts, key: Key, world_size: int, keep: int, began: float) -> None:
        """Copy the state and write the copy in the background. `began`: start of the cell's wait."""
        self.wait()
        copies, rest = self._buffers.copy(parts.tensors), parts.rest
        size_bytes, waited_s = parts.size_bytes, time.perf_counter() - began

        def work() -> None:
            cpu_s = time.thread_time()
            try:
                with self._snapshot_store.adding(key, world_size, keep, size_bytes) as folder:
                    write_files(folder, copies, rest)
            except Exception as error:
                if not self._complained:  # Print it once: training continues without snapshots.
                    self._complained = True
                    print(f"mc.checkpoint: no snapshot was saved. {error}", file=sys.stderr)  # noqa: T201
            self.cost_s = waited_s + time.thread_time() - cpu_s

        # Not a daemon thread: a rank must finish its last snapshot before it exits.
        self._thread = threading.Thread(target=work, name="minicluster-snapshot")
        self._thread.start()

    def wait(self) -> None:
        """Wait until the current snapshot is written."""
        if self._thread is not None:
            self._thread.join()


# Lets the ranks of a job agree on snapshots: small messages over a CPU process group of its own.


_PIECE_BYTES = 8 << 20
T = TypeVar("T")


class Ranks:
    """All ranks that train together; without a process group, this rank alone."""

    def __init__(self) -> None:
        self._group: Any = None
        self._background: tuple[Any, Any] = (None, None)
        if place.framework() != "torch" and place.world_size() > 1 and not dist.is_initialized():
            # The ranks agree through a group of torch, whatever they train with.
            dist.init_process_group("gloo")
        self.alone = not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() == 1
        self.rank = place.rank() if self.alone else dist.get_rank()
        self.writes = place.local_rank() == 0
        """Whether this rank writes and reads the snapshots of its node."""
        if not self.alone:
            world = dist.distributed_c10d._get_default_group()
            if torch.device("cpu") not in world._device_types:
                self._group = dist.new_group(backend="gloo")

    @property
    def decides(self) -> bool:
        """Whether this rank decides when to save. In a fault-tolerant job each rank decides for itself."""
        return self.alone or self.rank == 0

    def gather(self, value: T) -> list[T]:
        """Return every rank's value, in the order of ranks."""
        if self.alone:
            return [value]
        values: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(values, value, group=self._group)
        return values

    def told_by(self, source: int, value: T) -> T:
        """Return the value of rank `source` on all ranks."""
        if self.alone:
            return value
        told: list[Any] = [value if self.rank == source else None]
        dist.broadcast_object_list(told, src=source, group=self._group)
        return told[0]

    @property
    def background_group(self) -> Any:
        """A group for messages beside those of the training. All ranks ask for it alike."""
        world = dist.group.WORLD
        made_for, group = self._background
        if made_for is not world:
            # A session has another default group after a cell that broke it.
            group = dist.new_group(backend="gloo")
            self._background = (world, group)
        return group

    def decided_by_first(self, value: Any) -> Any:
        """Return rank 0's value, a tuple of integers, on all ranks."""
        if self.alone:
            return value
        numbers = torch.tensor(value, dtype=torch.int64)
        dist.broadcast(numbers, src=0, group=self._group)
        return tuple(numbers.tolist())

    def broadcast_pieces(self, source: int, size_bytes: int, pieces: Iterable[bytes]) -> Iterator[bytes]:
        """Yield the `pieces` of rank `source` on all ranks. All ranks must iterate to the end."""
        if self.rank == source:
            held = bytearray()
            for piece in pieces:
                held += piece
                while len(held) >= _PIECE_BYTES:
                    yield self._broadcast(source, held[:_PIECE_BYTES], _PIECE_BYTES)
                    del held[:_PIECE_BYTES]
            if held:
                yield self._broadcast(source, held, len(held))
            return
        for start in range(0, size_bytes, _PIECE_BYTES):
            yield self._broadcast(source, None, min(_PIECE_BYTES, size_bytes - start))

    def _broadcast(self, source: int, data: bytearray | None, size: int) -> bytes:
        piece = torch.empty(size, dtype=torch.uint8)
        if data is not None:
            piece = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        dist.broadcast(piece, src=source, group=self._group)
        return piece.numpy().tobytes()
