"""The use of a machine's CPU, memory and network, from /proc; of a container with limits, from its cgroup."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_NO_LIMIT_BYTES = 1 << 60
"""Version 1 of cgroups says this or more where there is no limit."""
_KB = 1024


@dataclass(frozen=True, slots=True)
class Counters:
    """busy_s: CPU time since some moment. cores: how many there are to use. memory: in use, and all."""

    busy_s: float
    cores: float
    memory_bytes: int
    memory_total_bytes: int
    received_bytes: int
    sent_bytes: int


class SystemFiles:
    """The files of /proc and /sys. own_limits: count only this container, as far as it has limits.

    An agent reads the whole machine, though it runs in a container: /proc shows it.
    """

    def __init__(
        self,
        own_limits: bool = False,
        proc: Path = Path("/proc"),
        groups: Path = Path("/sys/fs/cgroup"),
        interfaces: Path = Path("/sys/class/net"),
    ) -> None:
        self._proc = proc
        self._interfaces = interfaces
        self._group = Cgroup(groups) if own_limits else None

    def read(self) -> Counters:
        """Return the counters now. Raises OSError, ValueError if /proc is not as Linux has it."""
        cpu = self._group.cpu() if self._group else None
        memory = self._group.memory() if self._group else None
        busy_s, cores = cpu or (self._busy_s(), float(os.cpu_count() or 1))
        memory_bytes, total_bytes = memory or self._memory()
        received_bytes, sent_bytes = self._network()
        return Counters(busy_s, cores, memory_bytes, total_bytes, received_bytes, sent_bytes)

    def _busy_s(self) -> float:
        with (self._proc / "stat").open() as file:
            user, nice, system, _idle, _iowait, irq, softirq = map(int, file.readline().split()[1:8])
        return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")

    def _memory(self) -> tuple[int, int]:
        fields = _fields((self._proc / "meminfo").read_text())
        total, available = int(fields["MemTotal:"]) * _KB, int(fields["MemAvailable:"]) * _KB
        return total - available, total

    def _network(self) -> tuple[int, int]:
        """Return the bytes of all network cards; those of bridges and containers are in them already."""
        columns, cards = self._interface_rows()
        # In a container with a network of its own, no interface is a card.
        counted = [columns[name] for name in cards or columns.keys() - {"lo"}]
        return sum(int(row[0]) for row in counted), sum(int(row[8]) for row in counted)

    def container_network(self) -> tuple[int, int] | None:
        """Return the bytes that this container received and sent; None if it has no network of its own.

        Raises OSError, ValueError if /proc is not as Linux has it.
        """
        return None if self._interface_rows()[1] else self._network()

    def _interface_rows(self) -> tuple[dict[str, list[str]], list[str]]:
        """Return the rows of all interfaces by name, and which of them are cards."""
        lines = (self._proc / "net" / "dev").read_text().splitlines()[2:]
        rows = {name.strip(): rest.split() for name, _, rest in (line.partition(":") for line in lines)}
        return rows, [name for name in rows if (self._interfaces / name / "device").exists()]


class Cgroup:
    """The control group of this container, of version 2 or 1. Without limits, the machine's use counts."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def cpu(self) -> tuple[float, float] | None:
        """Return the CPU time in seconds, and the number of cores that the group may use; None: no limit."""
        quota, period = self._quota()
        if quota <= 0 or period <= 0:
            return None
        usage = _fields(self._text("cpu.stat")).get("usage_usec")
        if usage is not None:
            return int(usage) / 1e6, quota / period
        nanoseconds = self._text("cpuacct/cpuacct.usage").strip()
        return (int(nanoseconds) / 1e9, quota / period) if nanoseconds else None

    def memory(self) -> tuple[int, int] | None:
        """Return the memory in use and its limit; None without a limit. The page cache does not count."""
        for limit, used, details, cache in _MEMORY_FILES:
            text = self._text(limit).strip()
            if text.isdecimal() and int(text) < _NO_LIMIT_BYTES:
                cached = int(_fields(self._text(details)).get(cache, 0))
                return max(0, int(self._text(used)) - cached), int(text)
        return None

    def _quota(self) -> tuple[int, int]:
        quota, _, period = self._text("cpu.max").strip().partition(" ")
        if not quota:
            quota, period = (self._text(f"cpu/cpu.cfs_{name}_us").strip() for name in ("quota", "period"))
        return (int(quota), int(period)) if quota.isdecimal() and period.isdecimal() else (0, 0)

    def _text(self, name: str) -> str:
        try:
            return (self._folder / name).read_text()
        except OSError:
            return ""


_MEMORY_FILES = (
    ("memory.max", "memory.current", "memory.stat", "inactive_file"),
    (
        "memory/memory.limit_in_bytes",
        "memory/memory.usage_in_bytes",
        "memory/memory.stat",
        "total_inactive_file",
    ),
)


def _fields(text: str) -> dict[str, str]:
    """Return the first two words of each line, as a key and its value."""
    return dict(_pairs(text))


def _pairs(text: str) -> Iterator[tuple[str, str]]:
    for line in text.splitlines():
        words = line.split(maxsplit=2)
        if len(words) > 1:
            yield words[0], words[1]
