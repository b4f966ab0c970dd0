"""Readings of a machine, from files as Linux has them, and from this machine."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from minicluster.machine.reader import MachineReader
from minicluster.machine.system import Counters, SystemFiles
from minicluster.wire import GpuState

NETWORK = """\
Inter-|   Receive                            |  Transmit
 face |bytes packets errs drop fifo frame compressed multicast|bytes packets errs drop fifo colls carrier
    lo: 3096612660  309446    0    0    0     0     0     0 3096612660  309446    0    0    0     0       0
  eth0: 1000   29930    0    0    0     0     0     0  200   18659    0    0    0     0       0          0
docker0: 500       0    0    0    0     0     0     0   50       0    0    0    0     0       0          0
"""
MEMORY = "MemTotal:       1000 kB\nMemFree:         100 kB\nMemAvailable:    400 kB\n"


class Machine:
    """The files of a machine, in a folder."""

    def __init__(self, folder: Path) -> None:
        self.proc, self.groups, self.cards = folder / "proc", folder / "cgroup", folder / "net"
        self.write(self.proc / "stat", "cpu  100 50 50 800 10 5 5 9 0 0\ncpu0 1 2 3\n")
        self.write(self.proc / "meminfo", MEMORY)
        self.write(self.proc / "net" / "dev", NETWORK)
        (self.cards / "eth0" / "device").mkdir(parents=True)
        (self.cards / "docker0").mkdir()

    @staticmethod
    def write(path: Path, text: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def limit(self, **files: str) -> None:
        for name, text in files.items():
            self.write(self.groups / name.replace("__", "/").replace("_of_", "."), text)

    def counters(self, own_limits: bool = False) -> Counters:
        return SystemFiles(own_limits, self.proc, self.groups, self.cards).read()


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_the_whole_machine_is_read_with_its_network_cards_only(machine: Machine) -> None:
    ticks = os.sysconf("SC_CLK_TCK")
    found = machine.counters()
    assert found == Counters(
        busy_s=210 / ticks,
        cores=float(os.cpu_count() or 1),
        memory_bytes=600 * 1024,
        memory_total_bytes=1000 * 1024,
        received_bytes=1000,
        sent_bytes=200,
    )


def test_in_a_container_without_cards_all_interfaces_but_loopback_count(machine: Machine) -> None:
    files = SystemFiles(False, machine.proc, machine.groups, machine.cards)
    assert files.container_network() is None, "it has the machine's network"
    (machine.cards / "eth0" / "device").rmdir()
    assert (machine.counters().received_bytes, machine.counters().sent_bytes) == (1500, 250)
    assert files.container_network() == (1500, 250)


def test_limits_of_cgroups_version_2_are_the_machine_if_they_are_asked_for(machine: Machine) -> None:
    machine.limit(
        cpu_of_max="150000 100000\n",
        cpu_of_stat="usage_usec 2500000\nuser_usec 1\n",
        memory_of_max="1000000\n",
        memory_of_current="700000\n",
        memory_of_stat="anon 1\ninactive_file 200000\n",
    )
    own = machine.counters(own_limits=True)
    assert (own.busy_s, own.cores) == (2.5, 1.5)
    assert (own.memory_bytes, own.memory_total_bytes) == (500_000, 1_000_000)
    assert machine.counters().memory_total_bytes == 1000 * 1024, "an agent reads the whole machine"


def test_limits_of_cgroups_version_1(machine: Machine) -> None:
    machine.limit(
        cpu__cpu_of_cfs_quota_us="200000\n",
        cpu__cpu_of_cfs_period_us="100000\n",
        cpuacct__cpuacct_of_usage="3000000000\n",
        memory__memory_of_limit_in_bytes="2000\n",
        memory__memory_of_usage_in_bytes="900\n",
        memory__memory_of_stat="cache 5\ntotal_inactive_file 100\n",
    )
    own = machine.counters(own_limits=True)
    assert (own.busy_s, own.cores, own.memory_bytes, own.memory_total_bytes) == (3.0, 2.0, 800, 2000)


@pytest.mark.parametrize(
    "files",
    [
        {},
        {"cpu_of_max": "max 100000\n", "memory_of_max": "max\n"},
        {
            "cpu__cpu_of_cfs_quota_us": "-1\n",
            "cpu__cpu_of_cfs_period_us": "100000\n",
            "memory__memory_of_limit_in_bytes": "9223372036854771712\n",
        },
    ],
)
def test_without_limits_the_machine_counts(machine: Machine, files: dict[str, str]) -> None:
    machine.limit(**files)
    assert machine.counters(own_limits=True) == machine.counters()


class PlayedSystem:
    def __init__(self, *counters: Counters) -> None:
        self._counters = list(counters)

    def read(self) -> Counters:
        return self._counters.pop(0)


class PlayedGpus:
    def read(self) -> tuple[GpuState, ...]:
        return (GpuState(gpu="GPU-a", use_percent=40.0),)


def test_a_reading_is_the_use_since_the_one_before() -> None:
    times = iter([10.0, 12.0, 14.0])
    reader = MachineReader(
        PlayedSystem(
            Counters(5.0, 4.0, 10, 100, 1000, 0),
            Counters(9.0, 4.0, 20, 100, 5000, 10),
            Counters(8.0, 4.0, 20, 100, 0, 10),
        ),
        PlayedGpus(),
        lambda: next(times),
    )
    assert reader.read() is None, "there is nothing to compare the first one with"
    reading = reader.read()
    assert reading is not None
    assert (reading.cpu_percent, reading.cores, reading.memory_bytes) == (50.0, 4.0, 20)
    assert (reading.received_bytes_s, reading.sent_bytes_s) == (2000.0, 5.0)
    assert reading.gpus[0].use_percent == 40.0
    later = reader.read()
    assert later is not None
    assert (later.cpu_percent, later.received_bytes_s) == (0.0, 0.0), "counters that began anew"


def test_a_machine_without_proc_has_no_readings(tmp_path: Path) -> None:
    reader = MachineReader(SystemFiles(proc=tmp_path))
    assert reader.read() is None
    assert reader.read() is None


def test_this_machine_can_be_read() -> None:
    reader = MachineReader()
    reader.read()
    deadline = time.monotonic() + 0.2
    while time.monotonic() < deadline:
        sum(range(1000))
    reading = reader.read()
    assert reading is not None
    assert 0 < reading.cpu_percent <= 100
    assert 0 < reading.memory_bytes < reading.memory_total_bytes
