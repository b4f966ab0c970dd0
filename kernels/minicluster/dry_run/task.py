"""What a dry run shall do: the notebook writes it into a file, its child process reads it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel

from minicluster.runtime.paths import AttemptPaths
from minicluster.wire import RunOrder

_GRACE_S = 5.0
_TIMES_LONGER = 4.0


@dataclass(frozen=True)
class RankPlan:
    """What a virtual rank does. traced: its tensors are counted; timing_s: its steps are timed so long."""

    traced: bool = False
    timing_s: float = 0.0


class DryRunTask(BaseModel):
    """order: that of the first node's task. ranks: which ranks run, one after the other.

    limit_s: how long a rank may take to its first step. timing_s: how long steps are timed after it.
    traces: whether one of the ranks counts its tensors.
    """

    folder: str
    order: RunOrder
    ranks: tuple[int, ...]
    limit_s: float
    timing_s: float
    traces: bool = True

    @property
    def paths(self) -> AttemptPaths:
        return AttemptPaths(Path(self.folder) / "attempt")

    def findings(self, turn: int) -> Path:
        """Return the file with what the virtual rank of a turn has found."""
        return Path(self.folder) / f"turn-{turn}.json"

    def order_of(self, rank: int) -> RunOrder:
        """Return the order of the node on which a rank would be."""
        node = rank // self.order.local_world_size
        first = node * self.order.local_world_size
        return self.order.model_copy(update={"first_rank": first, "group_rank": node})

    def plan_of(self, turn: int) -> RankPlan:
        """The first of the ranks is timed, the second one is traced: tracing takes time."""
        return RankPlan(timing_s=0.0 if turn else self.timing_s, traced=self.traces and turn == 1)

    @property
    def kill_after_s(self) -> float:
        """When a rank is killed that does not end by itself."""
        return self.limit_s + self.more_steps_s + _GRACE_S

    @property
    def more_steps_s(self) -> float:
        """How long the steps after the first may take, if they are slow."""
        return _TIMES_LONGER * self.timing_s


def virtual_ranks(world_size: int) -> tuple[int, ...]:
    """Return which ranks of a job run: the first two, and the last, which may get less data."""
    return (0, min(1, world_size - 1), *([world_size - 1] if world_size > 2 else []))
