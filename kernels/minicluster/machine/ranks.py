"""What each rank uses, with all processes below it: CPU and memory from /proc, its GPU from the driver."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from minicluster.wire import GpuState, RankReading

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_LEAST_S = 0.05
_PARENT, _CPU, _RSS = 1, slice(11, 15), 21
"""Columns of /proc/PID/stat behind the name: the CPU time is the process's own and its reaped children's."""
_READ_ALL_EACH = 15
"""Rounds after which all processes are read again: the id of one that ended may be that of a rank's now."""


class GpuReader(Protocol):
    """See machine.gpus.Gpus."""

    def read(self) -> tuple[GpuState, ...]: ...

    def memory_of(self, gpus: Sequence[str]) -> Mapping[str, Mapping[int, int]]: ...


@dataclass(frozen=True, slots=True)
class ProcessUse:
    """Of a process with all below it. pids: their ids."""

    cpu_s: float
    memory_bytes: int
    pids: frozenset[int]


class RankReader:
    """gpus: those that the task was given; None without. A rank that is new has no reading yet.

    network: returns the bytes that the task's container received and sent, or None; its lowest rank has them.
    """

    def __init__(
        self,
        gpus: GpuReader | None = None,
        proc: Path = Path("/proc"),
        clock: Callable[[], float] = time.monotonic,
        network: Callable[[], tuple[int, int] | None] = lambda: None,
    ) -> None:
        self._gpus = gpus
        self._network = network
        self._bytes_before: tuple[float, tuple[int, int]] | None = None
        self._proc = proc
        self._clock = clock
        self._before: dict[int, tuple[int, float, float]] = {}
        self._others: frozenset[int] = frozenset()
        self._roots: set[int] = set()
        self._round = 0

    def read(self, pids: Mapping[int, int], local_ranks: Mapping[int, int]) -> tuple[RankReading, ...]:
        """Return the readings of ranks. pids, local_ranks: by rank."""
        now, uses = self._clock(), self._process_uses(set(pids.values()))
        gpus = self._gpus.read() if self._gpus and pids else ()
        held = self._gpus.memory_of([gpu.gpu for gpu in gpus]) if self._gpus and gpus else {}
        traffic = self._traffic(now)
        before, self._before = self._before, {}
        found: list[RankReading] = []
        for rank, pid in pids.items():
            use = uses[pid]
            self._before[rank] = pid, now, use.cpu_s
            last = before.get(rank)
            if not use.pids or last is None or last[0] != pid or now - last[1] < _LEAST_S:
                continue
            percent = 100.0 * max(0.0, use.cpu_s - last[2]) / (now - last[1])
            shares = len(local_ranks) > len(gpus)
            gpu = _gpu_of(use, gpus, held, local_ranks[rank], shares=shares) if gpus else _NO_GPU
            found.append(
                RankReading(
                    rank=rank,
                    cpu_percent=percent,
                    memory_bytes=use.memory_bytes,
                    gpu_percent=gpu.percent,
                    gpu_memory_bytes=gpu.memory_bytes,
                )
            )
        if traffic is not None and found:
            received, sent = traffic
            found[0] = found[0].model_copy(update={"received_bytes_s": received, "sent_bytes_s": sent})
        return tuple(found)

    def _traffic(self, now: float) -> tuple[float, float] | None:
        """Return the bytes per second that the container received and sent since the last reading."""
        counted = self._network()
        before, self._bytes_before = self._bytes_before, counted and (now, counted)
        if before is None or counted is None or now - before[0] < _LEAST_S:
            return None
        received, sent = (
            max(0, new - old) / (now - before[0]) for new, old in zip(counted, before[1], strict=True)
        )
        return received, sent

    def _process_uses(self, roots: set[int]) -> dict[int, ProcessUse]:
        """Read the processes, but for those that were no rank's before: they do not become one's."""
        same = roots == self._roots and self._round % _READ_ALL_EACH
        known = self._others if same else frozenset[int]()
        self._roots, self._round = roots, self._round + 1
        stats = dict(_stats(self._proc, known))
        uses = _uses(roots, stats)
        of_ranks = frozenset[int]().union(*(use.pids for use in uses.values()))
        self._others = known | (stats.keys() - of_ranks)
        return uses


@dataclass(frozen=True, slots=True)
class _GpuShare:
    percent: float | None
    memory_bytes: int | None


_NO_GPU = _GpuShare(None, None)


def _gpu_of(
    use: ProcessUse,
    gpus: Sequence[GpuState],
    held: Mapping[str, Mapping[int, int]],
    local_rank: int,
    *,
    shares: bool,
) -> _GpuShare:
    """Return what a rank has of the GPU that its processes hold most of, as far as the driver names them.

    In a container the driver may name processes by ids that are unknown here. Then it is the GPU that ranks
    are given by their numbers, with all of its memory unless ranks share it.
    """
    memory = {gpu: sum(bytes_ for pid, bytes_ in of.items() if pid in use.pids) for gpu, of in held.items()}
    most = max(memory, key=lambda gpu: memory[gpu], default="")
    if memory.get(most):
        state = next(gpu for gpu in gpus if gpu.gpu == most)
        return _GpuShare(state.use_percent, sum(memory.values()))
    state = gpus[local_rank % len(gpus)]
    return _GpuShare(state.use_percent, None if shares else state.memory_bytes)


def process_uses(roots: set[int], proc: Path = Path("/proc")) -> dict[int, ProcessUse]:
    """Return the use of each of these processes with all below it. One that is gone uses nothing."""
    return _uses(roots, dict(_stats(proc)))


def _uses(roots: set[int], stats: Mapping[int, Sequence[str]]) -> dict[int, ProcessUse]:
    children: dict[int, list[int]] = {}
    for pid, stat in stats.items():
        children.setdefault(int(stat[_PARENT]), []).append(pid)
    return {root: _use(root, stats, children) for root in roots}


def _use(root: int, stats: Mapping[int, Sequence[str]], children: Mapping[int, list[int]]) -> ProcessUse:
    pids, todo = list[int](), [root] if root in stats else []
    while todo:
        pid = todo.pop()
        pids.append(pid)
        todo += children.get(pid, [])
    ticks = sum(int(value) for pid in pids for value in stats[pid][_CPU])
    pages = sum(int(stats[pid][_RSS]) for pid in pids)
    return ProcessUse(ticks / _TICKS_PER_S, pages * _PAGE_BYTES, frozenset(pids))


def _stats(proc: Path, but: Collection[int] = ()) -> Iterator[tuple[int, list[str]]]:
    for entry in os.scandir(proc):
        if entry.name.isdecimal() and int(entry.name) not in but:
            try:
                with open(f"{entry.path}/stat") as file:  # noqa: PTH123 - a third faster, for each process
                    # The name in parentheses may hold anything; the fields behind it are plain.
                    yield int(entry.name), file.read().rpartition(")")[2].split()
            except OSError:
                continue
