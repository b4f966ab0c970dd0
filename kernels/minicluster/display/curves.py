"""Turns the records of `mc.log` and `mc.progress` into curves with a bounded number of points."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from minicluster.wire import Record

_MAX_POINTS = 400
_MAX_CURVES = 8
_MAX_COUNTED = 1000
LOST_AFTER_S = 5.0
"""Ranks train in lockstep: one that sends nothing for this long while others send is lost."""


@dataclass
class Curve:
    """One logged value over the steps; stores every `stride`-th point. at: the last record's Unix time."""

    points: list[tuple[float, float]] = field(default_factory=list)
    last: float = math.nan
    seen: int = 0
    stride: int = 1
    at: float = 0.0

    def add(self, x: float, y: float, at: float) -> None:
        self.last, self.at = y, at
        while self.points and self.points[-1][0] > x:
            # A new attempt restarted at an earlier step: drop the points that it repeats.
            self.points.pop()
        if self.seen % self.stride == 0 and math.isfinite(x) and math.isfinite(y):
            self.points.append((x, y))
        self.seen += 1
        if len(self.points) > _MAX_POINTS:
            del self.points[1::2]
            self.stride *= 2


@dataclass(frozen=True)
class RankProgress:
    """A rank's progress in its loop. left_s: estimated time left; None if unknown.

    began_at, began_done: time and progress of the loop's first record; the rate is computed from it.
    """

    done: float
    total: float | None
    label: str
    left_s: float | None
    at: float = 0.0
    began_at: float = 0.0
    began_done: float = 0.0

    @classmethod
    def after(cls, before: RankProgress | None, record: Record) -> RankProgress:
        """Return the progress after a record. A new label or a lower `done` starts a new loop."""
        done = record.done or 0.0
        if before is None or before.label != record.label or done < before.began_done:
            return cls(done, record.total, record.label, None, record.at, record.at, done)
        took_s = record.at - before.began_at
        rate = (done - before.began_done) / took_s if took_s > 0 else 0.0
        left_s = (record.total - done) / rate if record.total is not None and rate > 0 else None
        return cls(done, record.total, record.label, left_s, record.at, before.began_at, before.began_done)


class JobMetrics:
    """Curves and progress of the lowest rank that logs; if it is lost, of the next rank."""

    def __init__(self) -> None:
        self._curves: dict[str, dict[int, Curve]] = {}
        self._progress: dict[int, RankProgress] = {}
        self._left_out: dict[str, None] = {}

    @property
    def left_out(self) -> tuple[str, ...]:
        """Logged names beyond the limit; they have no curve."""
        return tuple(self._left_out)

    @property
    def other_ranks(self) -> int:
        """Number of other ranks that logged the same names."""
        return max((len(by_rank) - 1 for by_rank in self._curves.values()), default=0)

    @property
    def curves(self) -> dict[str, Curve]:
        return {name: _joined(by_rank) for name, by_rank in self._curves.items()}

    @property
    def progress(self) -> RankProgress | None:
        """The progress of the lowest rank that is not lost."""
        newest_at = max((one.at for one in self._progress.values()), default=0.0)
        recent = (rank for rank, one in self._progress.items() if newest_at - one.at <= LOST_AFTER_S)
        return self._progress.get(min(recent, default=-1))

    def add(self, records: Iterable[Record]) -> None:
        for record in records:
            if record.kind == "log":
                self._log(record)
            elif record.kind == "progress":
                self._progress[record.rank] = RankProgress.after(self._progress.get(record.rank), record)

    def _log(self, record: Record) -> None:
        for name, value in record.values.items():
            if name in self._curves or len(self._curves) < _MAX_CURVES:
                curve = self._curves.setdefault(name, {}).setdefault(record.rank, Curve())
                curve.add(curve.seen if record.step is None else record.step, value, record.at)
            elif len(self._left_out) < _MAX_COUNTED:
                self._left_out[name] = None


def _joined(by_rank: Mapping[int, Curve]) -> Curve:
    """Return the lowest rank's curve; from its loss on, continue it with the next rank's."""
    found, *others = (by_rank[rank] for rank in sorted(by_rank))
    for other in others:
        if other.at - found.at > LOST_AFTER_S:
            until = found.points[-1][0] if found.points else -math.inf
            later = [point for point in other.points if point[0] > until]
            found = Curve([*found.points, *later], other.last, at=other.at)
    return found
