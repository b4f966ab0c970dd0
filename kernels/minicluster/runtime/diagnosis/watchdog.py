"""What an agent can say of where its ranks are: which are quiet, and their stacks when it is asked."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from minicluster.wire import RankSight, RankStack

from minicluster.runtime.diagnosis import stacks
from minicluster.runtime.diagnosis.stack_dumps import Looked, look
from minicluster.runtime.paths import AttemptPaths
from minicluster.runtime.diagnosis.quiet import QuietWatch
from minicluster.runtime.agent.ranks import LocalRank


class Lookout:
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
