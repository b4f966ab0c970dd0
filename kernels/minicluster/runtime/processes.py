"""The tree of processes below the agent, read from /proc.

Agent and zygote adopt orphans, so all that a rank ever started stays in the tree, whatever session
or environment it took; nothing outside of it is ever touched.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Collection

_SWEEPS = 100
_SWEEP_WAIT_S = 0.02
_READINGS = 5
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def descendants(root: int) -> list[int]:
    """Return all processes below `root`, those that wait to be reaped left out."""
    children: dict[int, list[int]] = {}
    stats = _stats()
    for pid, stat in stats.items():
        children.setdefault(int(stat[1]), []).append(pid)
    found, todo = [], [root]
    while todo:
        below = [pid for pid in children.get(todo.pop(), []) if not _has_ended(stats[pid])]
        found += below
        todo += below
    return found


def kill_below(root: int, keep: Collection[int] = ()) -> int:
    """Send SIGKILL to all processes below `root` but those of `keep`. Return how many there were."""
    victims = [pid for pid in descendants(root) if pid not in keep]
    for pid in victims:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return len(victims)


async def clear_below(root: int, keep: Collection[int] = ()) -> bool:
    """Kill all below `root` until none is left. Return False when some do not end in 2 s."""
    for _ in range(_SWEEPS):
        if not kill_below(root, keep):
            return True
        await asyncio.sleep(_SWEEP_WAIT_S)
    return False


def signal_group(pid: int, number: signal.Signals) -> None:
    """Signal a rank with its children, and continue them: a stopped process would not see the signal."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, number)
        os.killpg(pid, signal.SIGCONT)


def state_of(pid: int) -> str:
    """Return the kernel's letter for what a process does (R, S, D, T, Z); X when it is gone."""
    stat = _stat(pid)
    return stat[0] if stat else "X"


def cpu_seconds(roots: Collection[int]) -> dict[int, float]:
    """Return the CPU time of each of these processes together with all below it, living or gone."""
    children: dict[int, list[int]] = {}
    ticks: dict[int, int] = {}
    for pid, stat in _stats().items():
        children.setdefault(int(stat[1]), []).append(pid)
        ticks[pid] = sum(map(int, stat[11:15]))
    return {root: _sum_below(root, children, ticks) / _TICKS_PER_S for root in roots}


def _sum_below(root: int, children: dict[int, list[int]], ticks: dict[int, int]) -> int:
    total, todo = 0, [root]
    while todo:
        pid = todo.pop()
        total += ticks.get(pid, 0)
        todo += children.get(pid, [])
    return total


def _stats() -> dict[int, list[str]]:
    """Return all processes of a moment, with what `_stat` returns of each.

    When one ends meanwhile, its children may be missing, or point to it: then all are read again.
    """
    stats: dict[int, list[str]] = {}
    for _ in range(_READINGS):
        listed = [int(name) for name in os.listdir("/proc") if name.isdecimal()]  # noqa: PTH208 - much faster
        stats = {pid: stat for pid in listed if (stat := _stat(pid))}
        if len(stats) == len(listed) and all(
            int(stat[1]) in stats or stat[1] == "0" for stat in stats.values()
        ):
            break
    return stats


def _has_ended(stat: list[str]) -> bool:
    """Return whether no thread of a process is left: when only the first has ended, its state is Z, too."""
    state, threads = stat[0], int(stat[17])
    return state in "ZX" and threads <= 1


def _stat(pid: int) -> list[str]:
    """Return a process's line from its state on, nothing when it is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:  # noqa: PTH123 - as in _stats
            # The name in parentheses may hold anything; the fields behind it are plain.
            return file.read().rpartition(b")")[2].decode().split()
    except OSError:
        return []
