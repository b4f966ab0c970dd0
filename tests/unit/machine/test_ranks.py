"""What ranks use, from /proc as Linux has it, and from what the driver says of their GPUs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from minicluster.machine.ranks import RankReader, process_uses
from minicluster.wire import GpuState

TICKS, PAGE = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")
MB = 1 << 20


class Processes:
    """A folder like /proc."""

    def __init__(self, folder: Path) -> None:
        self.proc = folder

    def set(self, pid: int, parent: int, cpu_s: float = 0.0, reaped_s: float = 0.0, rss: int = 0) -> None:
        fields = ["0"] * 45
        fields[0], fields[1] = "S", str(parent)
        fields[11], fields[14] = str(int(cpu_s * TICKS)), str(int(reaped_s * TICKS))
        fields[21] = str(rss // PAGE)
        folder = self.proc / str(pid)
        folder.mkdir(exist_ok=True)
        (folder / "stat").write_text(f"{pid} (odd) name) {' '.join(fields)}\n")


@pytest.fixture
def processes(tmp_path: Path) -> Processes:
    made = Processes(tmp_path)
    (tmp_path / "self").mkdir()
    (tmp_path / "99").mkdir()  # It ended while it was read.
    return made


class PlayedGpus:
    def __init__(self, held: Mapping[str, Mapping[int, int]], *uses: float) -> None:
        self._held = held
        self._uses = uses

    def read(self) -> tuple[GpuState, ...]:
        return tuple(
            GpuState(gpu=f"GPU-{number}", use_percent=use, memory_bytes=1000 + number)
            for number, use in enumerate(self._uses)
        )

    def memory_of(self, gpus: Sequence[str]) -> Mapping[str, Mapping[int, int]]:
        return self._held


class Clock:
    now_s = 10.0

    def __call__(self) -> float:
        return self.now_s


def test_a_rank_is_all_that_it_started(processes: Processes) -> None:
    processes.set(10, 1, cpu_s=1.0, rss=10 * MB)
    processes.set(11, 10, cpu_s=2.0, reaped_s=4.0, rss=5 * MB)
    processes.set(12, 11, rss=MB)
    processes.set(20, 1, cpu_s=50.0, rss=99 * MB)
    use = process_uses({10, 77}, processes.proc)
    assert (use[10].cpu_s, use[10].memory_bytes) == (7.0, 16 * MB)
    assert use[10].pids == {10, 11, 12}
    assert not use[77].pids


def test_the_lowest_rank_has_the_network_of_its_container(processes: Processes) -> None:
    clock, counted = Clock(), iter([(1000, 500), (5000, 700), None, (9000, 900)])
    reader = RankReader(proc=processes.proc, clock=clock, network=lambda: next(counted))
    found = []
    for _ in range(4):
        processes.set(10, 1)
        processes.set(20, 1)
        found.append(reader.read({3: 10, 4: 20}, {3: 0, 4: 1}))
        clock.now_s += 2.0
    assert [(one.rank, one.received_bytes_s, one.sent_bytes_s) for one in found[1]] == [
        (3, 2000.0, 100.0),
        (4, None, None),
    ]
    assert [one.received_bytes_s for one in (*found[2], *found[3])] == [None] * 4


def test_a_reading_is_the_use_since_the_one_before(processes: Processes) -> None:
    clock = Clock()
    reader = RankReader(proc=processes.proc, clock=clock)
    processes.set(10, 1, cpu_s=1.0)
    assert reader.read({3: 10}, {3: 0}) == ()
    clock.now_s += 2.0
    processes.set(10, 1, cpu_s=4.0, rss=10 * MB)
    (found,) = reader.read({3: 10}, {3: 0})
    assert (found.rank, found.cpu_percent, found.memory_bytes) == (3, 150.0, 10 * MB)
    assert (found.gpu_percent, found.gpu_memory_bytes) == (None, None)
    clock.now_s += 2.0
    processes.set(30, 1, cpu_s=9.0)
    assert reader.read({3: 30}, {3: 0}) == (), "another process: a new attempt's rank"


def test_processes_of_others_are_read_seldom_and_new_children_at_once(processes: Processes) -> None:
    clock = Clock()
    reader = RankReader(proc=processes.proc, clock=clock)
    processes.set(10, 1)
    processes.set(20, 1, rss=MB)
    reader.read({0: 10}, {0: 0})
    processes.set(11, 10, rss=MB)
    processes.set(20, 10, rss=MB)  # Another process has this id now.
    found = []
    for _ in range(20):
        clock.now_s += 2.0
        found += [one.memory_bytes // MB for one in reader.read({0: 10}, {0: 0})]
    assert found[0] == 1
    assert found[-1] == 2


def read_twice(processes: Processes, gpus: PlayedGpus, pids: Mapping[int, int]) -> list[object]:
    clock = Clock()
    reader = RankReader(gpus, processes.proc, clock)
    for rank, pid in pids.items():
        processes.set(pid, 1, cpu_s=float(rank))
    reader.read(pids, {rank: number for number, rank in enumerate(pids)})
    clock.now_s += 2.0
    found = reader.read(pids, {rank: number for number, rank in enumerate(pids)})
    return [(one.gpu_percent, one.gpu_memory_bytes) for one in found]


def test_a_ranks_gpu_is_the_one_that_its_processes_hold(processes: Processes) -> None:
    held = {"GPU-0": {11: 300, 555: 9}, "GPU-1": {10: 500, 11: 100}}
    assert read_twice(processes, PlayedGpus(held, 20.0, 90.0), {0: 10, 1: 11}) == [(90.0, 500), (20.0, 400)]


def test_where_the_driver_names_other_processes_the_ranks_number_decides(processes: Processes) -> None:
    unknown = {"GPU-0": {31337: 300}, "GPU-1": {}}
    found = read_twice(processes, PlayedGpus(unknown, 20.0, 90.0), {4: 10, 5: 11})
    assert found == [(20.0, 1000), (90.0, 1001)]
    shared = read_twice(processes, PlayedGpus({}, 20.0), {4: 10, 5: 11})
    assert shared == [(20.0, None), (20.0, None)], "whose memory it is cannot be told"


def test_a_real_process_and_its_child() -> None:
    code = "import os, time; os.fork(); end = time.monotonic() + 20\nwhile time.monotonic() < end: pass"
    with subprocess.Popen([sys.executable, "-c", code], start_new_session=True) as process:
        try:
            reader = RankReader()
            reader.read({0: process.pid}, {0: 0})
            time.sleep(0.5)
            (found,) = reader.read({0: process.pid}, {0: 0})
        finally:
            os.killpg(process.pid, signal.SIGKILL)
    assert found.cpu_percent > 5
    assert found.memory_bytes > 5 * MB
