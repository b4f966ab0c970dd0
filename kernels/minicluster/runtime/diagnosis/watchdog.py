"""What an agent can say of where its ranks are: which are quiet, and their stacks when it is asked."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from minicluster.runtime import processes
from minicluster.runtime.agent.ranks import LocalRank
from minicluster.runtime.diagnosis import stacks
from minicluster.runtime.diagnosis.stack_dumps import Looked, look
from minicluster.runtime.paths import AttemptPaths
from minicluster.wire import RankSight, RankStack

SAMPLE_S = 1.0
BUSY_SHARE = 0.05
"""The part of a core above which a process does something: waiting in a loop with naps takes less."""


class Watchdog:
    """Watches the ranks of one attempt, and looks at them once for each new number that it is given."""

    def __init__(
        self,
        ranks: Sequence[LocalRank],
        paths: AttemptPaths,
        quiet_after_s: float,
        changed: Callable[[], None],
    ) -> None:
        self._ranks = ranks
        self._paths = paths
        self._changed = changed
        self._watch = QuietWatch(ranks, quiet_after_s, changed)
        self._asked = 0
        self._answered = 0
        self._stacks: tuple[RankStack, ...] = ()
        self._looking: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Watch until cancelled."""
        await self._watch.run()

    def report(self) -> dict[str, Any]:
        """Return the fields of a report that are its own."""
        return {"quiet": self._watch.quiet, "look": self._answered, "stacks": self._stacks}

    def quiet_s(self, rank: int) -> float:
        """Return for how long a rank has made no progress."""
        return round(self._watch.quiet_s(rank, asyncio.get_running_loop().time()), 1)

    def told(self, number: int) -> None:
        """Drop the stacks that the service holds."""
        if number == self._answered:
            self._stacks = ()

    def ask(self, number: int) -> None:
        """Have a look taken, unless it is the one that was taken last."""
        if number in (0, self._asked):
            return
        self._asked = number
        if self._looking:
            self._looking.cancel()
        self._looking = asyncio.create_task(self._look(number))

    def close(self) -> None:
        if self._looking:
            self._looking.cancel()

    async def _look(self, number: int) -> None:
        cell = stacks.CellText.read(self._paths.cell)
        found = await asyncio.gather(*(self._look_at(rank, cell) for rank in self._ranks))
        self._stacks, self._answered = tuple(found), number
        self._changed()

    async def _look_at(self, rank: LocalRank, cell: stacks.CellText) -> RankStack:
        if rank.pid is None:
            sight = RankSight.ENDED if rank.leaving or rank.end else RankSight.STARTING
            return RankStack(rank=rank.rank, sight=sight)
        answers = self._paths.stacks(rank.rank)
        seen = await look(Looked(rank.rank, rank.pid, answers, cell, self.quiet_s(rank.rank)))
        return seen.model_copy(update={"ending": rank.waits_for})


# Which ranks make no progress: no output, no record, and next to no CPU time, children included.
# A rank that waits for others in a collective uses none. A rank whose GPU computes while Python waits
# uses a whole core, since CUDA spins: such a one is never called quiet.


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
