"""Which ranks make no progress: no output, no record, and next to no CPU time, children included.

A rank that waits for others in a collective uses none. A rank whose GPU computes while Python waits
uses a whole core, since CUDA spins: such a one is never called quiet.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from minicluster.runtime import processes

SAMPLE_S = 1.0
BUSY_SHARE = 0.05
"""The part of a core above which a process does something: waiting in a loop with naps takes less."""


class Follows(Protocol):
    """A rank as its agent follows it. pid: None before it lives and after. heard_bytes: of all it said."""

    @property
    def rank(self) -> int: ...

    @property
    def pid(self) -> int | None: ...

    @property
    def heard_bytes(self) -> int: ...


@dataclass
class LifeSigns:
    """What was last seen of one rank, and since when nothing moves."""

    since: float
    looked_at: float
    heard_bytes: int = 0
    cpu_s: float = 0.0

    def heard(self, total_bytes: int, now: float) -> bool:
        """Take the size of all that the rank has said; return whether there is more."""
        if total_bytes == self.heard_bytes:
            return False
        self.heard_bytes, self.since = total_bytes, now
        return True

    def worked(self, cpu_s: float, now: float) -> None:
        """Take the rank's CPU time until now."""
        spent_s, self.cpu_s = cpu_s - self.cpu_s, cpu_s
        if spent_s > BUSY_SHARE * (now - self.looked_at):
            self.since = now
        self.looked_at = now


class QuietWatch:
    """Looks at the ranks of an attempt each second; `changed` is called when `quiet` changes."""

    def __init__(self, ranks: Sequence[Follows], quiet_after_s: float, changed: Callable[[], None]) -> None:
        self.quiet: tuple[int, ...] = ()
        self._ranks = ranks
        self._quiet_after_s = quiet_after_s
        self._changed = changed
        self._signs: dict[int, LifeSigns] = {}

    async def run(self) -> None:
        """Look until cancelled."""
        clock = asyncio.get_running_loop().time
        try:
            while True:
                self.sample(clock(), processes.cpu_seconds)
                await asyncio.sleep(SAMPLE_S)
        finally:
            self.quiet = ()  # Reports go on after the ranks have ended.

    def quiet_s(self, rank: int, now: float) -> float:
        """Return for how long a rank has made no progress."""
        signs = self._signs.get(rank)
        return max(0.0, now - signs.since) if signs else 0.0

    def sample(self, now: float, cpu_seconds: Callable[[list[int]], dict[int, float]]) -> None:
        """Look once. CPU time is only asked for where nothing was heard."""
        living = {rank.rank: rank for rank in self._ranks if rank.pid is not None}
        self._signs = {rank: self._signs.get(rank) or LifeSigns(now, now) for rank in living}
        unheard = [one for one in living.values() if not self._signs[one.rank].heard(one.heard_bytes, now)]
        cpu = cpu_seconds([one.pid for one in unheard if one.pid]) if unheard else {}
        for one in unheard:
            self._signs[one.rank].worked(cpu.get(one.pid or 0, 0.0), now)
        after_s = self._quiet_after_s
        quiet = tuple(rank for rank in sorted(living) if after_s and self.quiet_s(rank, now) >= after_s)
        if quiet != self.quiet:
            self.quiet = quiet
            self._changed()
