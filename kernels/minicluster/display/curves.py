"""What `mc.log` and `mc.progress` said, kept small: curves of at most some hundred points each."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from minicluster.wire import Record

_MAX_POINTS = 400
_MAX_CURVES = 8
_MAX_COUNTED = 1000
LOST_AFTER_S = 5.0
"""A rank that has told nothing for so long, while others did, is lost: ranks take their steps together."""


@dataclass
class Curve:
    """One value over the steps; every `stride`-th point is kept, so that it never grows large.

    at: when it was last told.
    """

    points: list[tuple[float, float]] = field(default_factory=list)
    last: float = math.nan
    seen: int = 0
    stride: int = 1
    at: float = 0.0

    def add(self, x: float, y: float, at: float) -> None:
        self.last, self.at = y, at
        while self.points and self.points[-1][0] > x:
            # An attempt went on from here: what came later is done again.
            self.points.pop()
        if self.seen % self.stride == 0 and math.isfinite(x) and math.isfinite(y):
            self.points.append((x, y))
        self.seen += 1
        if len(self.points) > _MAX_POINTS:
            del self.points[1::2]
            self.stride *= 2


@dataclass(frozen=True)
class Progress:
    """How far a rank is. `left_s`: expected time left, None as long as nothing is known."""

    done: float
    total: float | None
    label: str
    left_s: float | None


@dataclass
class Course:
    """A rank's newest progress, and where the rate began that its time left is told from."""

    at: float
    newest: Progress
    began_at: float
    began_done: float

    @classmethod
    def beginning(cls, record: Record) -> Course:
        done = record.done or 0.0
        return cls(record.at, Progress(done, record.total, record.label, None), record.at, done)

    def goes_on_with(self, record: Record) -> bool:
        return self.newest.label == record.label and (record.done or 0.0) >= self.began_done

    def add(self, record: Record) -> None:
        done, took_s = record.done or 0.0, record.at - self.began_at
        rate = (done - self.began_done) / took_s if took_s > 0 else 0.0
        left_s = (record.total - done) / rate if record.total is not None and rate > 0 else None
        self.at, self.newest = record.at, Progress(done, record.total, record.label, left_s)


class Metrics:
    """Curves and progress of the lowest rank that tells them, and of the next one once that is lost."""

    def __init__(self) -> None:
        self._curves: dict[str, dict[int, Curve]] = {}
        self._courses: dict[int, Course] = {}
        self._left_out: dict[str, None] = {}

    @property
    def left_out(self) -> tuple[str, ...]:
        """Names that were logged and have no curve: there are too many."""
        return tuple(self._left_out)

    @property
    def other_ranks(self) -> int:
        """How many ranks logged what another one's curve shows already."""
        return max((len(by_rank) - 1 for by_rank in self._curves.values()), default=0)

    @property
    def curves(self) -> dict[str, Curve]:
        return {name: _joined(by_rank) for name, by_rank in self._curves.items()}

    @property
    def progress(self) -> Progress | None:
        """That of the lowest rank that still tells its own."""
        newest_at = max((course.at for course in self._courses.values()), default=0.0)
        heard = (rank for rank, course in self._courses.items() if newest_at - course.at <= LOST_AFTER_S)
        rank = min(heard, default=None)
        return None if rank is None else self._courses[rank].newest

    def add(self, records: Iterable[Record]) -> None:
        for record in records:
            if record.kind == "log":
                self._log(record)
            else:
                self._note_progress(record)

    def _log(self, record: Record) -> None:
        for name, value in record.values.items():
            if name in self._curves or len(self._curves) < _MAX_CURVES:
                curve = self._curves.setdefault(name, {}).setdefault(record.rank, Curve())
                curve.add(curve.seen if record.step is None else record.step, value, record.at)
            elif len(self._left_out) < _MAX_COUNTED:
                self._left_out[name] = None

    def _note_progress(self, record: Record) -> None:
        course = self._courses.get(record.rank)
        if course is not None and course.goes_on_with(record):
            course.add(record)
        else:
            self._courses[record.rank] = Course.beginning(record)


def _joined(by_rank: Mapping[int, Curve]) -> Curve:
    """Return the lowest rank's curve; where it was lost and others went on, with what these told since."""
    found, *others = (by_rank[rank] for rank in sorted(by_rank))
    for other in others:
        if other.at - found.at > LOST_AFTER_S:
            until = found.points[-1][0] if found.points else -math.inf
            later = [point for point in other.points if point[0] > until]
            found = Curve([*found.points, *later], other.last, at=other.at)
    return found
