"""What differs between ranks at a cell's end, in words."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

_SHOWN = 5


@dataclass(frozen=True)
class Differences:
    """mine: by name the digests of rank 0's values that come back, others: those of each other rank.

    An empty digest says nothing: the value could not be compared. A rank that did not make or change
    what rank 0 did loses nothing, so that is no difference: `if rank == 0:` is a habit.
    """

    mine: Mapping[str, str] = field(default_factory=dict)
    others: Mapping[int, Mapping[str, str]] = field(default_factory=dict)

    def sentences(self, stayed: Collection[str]) -> list[str]:
        """Say what differs. stayed: names (or places in them) that do not come back at all."""
        gone = {name.partition(".")[0].partition("[")[0] for name in stayed}
        there = [one for one in self.mine if one not in gone and self._differs(one)]
        lost = dict.fromkeys(name for of_rank in self.others.values() for name in of_rank)
        lost = [one for one in lost if one not in self.mine and one not in gone]
        said = []
        if there:
            verb = "differs" if len(there) == 1 else "differ"
            said.append(f"{_list(there)} {verb} between ranks; rank 0's came back ({_way_out(there)})")
        if lost:
            verb = "was" if len(lost) == 1 else "were"
            said.append(
                f"{_list(lost)} {verb} made or changed on other ranks than rank 0 only, and did not come "
                f"back ({_way_out(lost)})"
            )
        return said

    def _differs(self, name: str) -> bool:
        mine = self.mine[name]
        return bool(mine) and any(
            of_rank.get(name) not in (None, "", mine) for of_rank in self.others.values()
        )


def late_sentence(ranks: Sequence[int], wait_s: float, *, gathering: bool) -> str:
    """Say which ranks did not speak in time."""
    who = f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}"
    silent = f"{who} had not come to the cell's end {wait_s:.0f} s after rank 0"
    if not gathering:
        return f"Values were not compared with those of all ranks: {silent}."
    return f"--gather: {silent}, so None stands there. End the cell with torch.distributed.barrier()."


def _list(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(f"`{name}`" for name in names[:_SHOWN]) + more


def _way_out(names: Sequence[str]) -> str:
    return f"--gather {','.join(names) if len(names) <= _SHOWN else 'NAMES'} brings all"
