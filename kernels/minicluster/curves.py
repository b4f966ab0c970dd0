"""What `mc.log` and `mc.progress` said, kept small: curves of at most some hundred points each."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from .wire import Record

_MAX_POINTS = 400
_MAX_CURVES = 8


@dataclass
class Curve:
    """One value over the steps; every `stride`-th point is kept, so that it never grows large."""

    points: list[tuple[float, float]] = field(default_factory=list)
    last: float = math.nan
    seen: int = 0
    stride: int = 1

    def add(self, x: float, y: float) -> None:
        self.last = y
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
    """How far the lowest rank is. `left_s`: expected time left, None as long as nothing is known."""

    done: float
    total: float | None
    label: str
    left_s: float | None


class Metrics:
    """Curves of the lowest rank that logs a name, and the newest progress of the lowest rank."""

    def __init__(self) -> None:
        self.curves: dict[str, Curve] = {}
        self.progress: Progress | None = None
        self._owner: dict[str, int] = {}
        self._progress_rank: int | None = None
        self._began: tuple[str, float, float] = ("", 0.0, 0.0)

    def add(self, records: Iterable[Record]) -> None:
        for record in records:
            if record.kind == "log":
                self._log(record)
            elif self._progress_rank is None or record.rank <= self._progress_rank:
                self._progress_rank = record.rank
                self._note_progress(record)

    def _log(self, record: Record) -> None:
        for name, value in record.values.items():
            owner = self._owner.get(name)
            if owner is None and len(self.curves) >= _MAX_CURVES:
                continue
            if owner is None or record.rank < owner:
                self._owner[name] = record.rank
                self.curves[name] = Curve()
            if record.rank == self._owner[name]:
                curve = self.curves[name]
                curve.add(curve.seen if record.step is None else record.step, value)

    def _note_progress(self, record: Record) -> None:
        done = record.done or 0.0
        label, began_at, began_done = self._began
        if label != record.label or done < began_done or self.progress is None:
            self._began = (record.label, record.at, done)
            self.progress = Progress(done, record.total, record.label, None)
            return
        rate = (done - began_done) / (record.at - began_at) if record.at > began_at else 0.0
        left_s = (record.total - done) / rate if record.total is not None and rate > 0 else None
        self.progress = Progress(done, record.total, record.label, left_s)
