"""A job's speed and remaining work, from the progress that its training reported in the last minutes.

Optimus (Peng et al., EuroSys 2018) and Tiresias' SRTF do the same from the logs of frameworks: the remaining
work divided by the rate of the steps. The time before the first step counts as startup, not in the rate.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace
from math import isfinite

from minicluster.wire import Progress
from minicluster_hub.scheduling.base import JobView
from minicluster_hub.scheduling.planning.speedups import gain, speed

WINDOW_S = 300.0
"""The rate is that of this last period: a training's speed changes during the run."""
DEFAULT_RESTART_COST_S = 15.0
"""The assumed cost of a restart until one is measured: on a lab's nodes, a job in a new container trained
again after 10 to 18 s."""
_SPACING_S = 0.5
_LEAST_S = 1.0
"""A rate is measured over at least this time."""
_NEWS_S = 10.0
_NEWS_SHARE = 0.2


@dataclass(frozen=True, slots=True)
class _Mark:
    at: float
    done: float
    steps: int


@dataclass
class ProgressRate:
    """The progress of one job, over all its attempts.

    rates: units of progress per second, by replicas. unit_steps: optimizer steps per unit.
    left: remaining units. received_at: when `left` was reported.
    restart_cost_s: duration of its last restart; None: none was measured.
    """

    rates: dict[int, float] = field(default_factory=dict[int, float])
    unit_steps: float = 0.0
    gradient_bytes: int = 0
    left: float | None = None
    received_at: float = 0.0
    restart_cost_s: float | None = None
    _where: tuple[int, int] = (0, 0)
    _marks: deque[_Mark] = field(default_factory=deque[_Mark])
    _began: float = 0.0
    _told_end: float | None = None

    def receive(self, progress: Progress, at: float, now: float, attempt: int, replicas: int) -> bool:
        """Take in a progress report; return whether the expected end has changed much.

        at: time of the report by its node's clock, of which only differences are used.
        """
        last = self._marks[-1] if self._marks else None
        if not isfinite(at) or (last and at < last.at and self._where == (attempt, replicas)):
            return False  # A repeated report.
        if self._where != (attempt, replicas) or (last and progress.done < last.done):
            self._where, self._began = (attempt, replicas), progress.done
            self._marks.clear()
        self.left = None if progress.total is None else max(0.0, progress.total - progress.done)
        self.received_at, self.gradient_bytes = now, progress.gradient_bytes
        if progress.done > self._began:
            self._mark(_Mark(at, progress.done, progress.steps))
            self._measure(replicas)
        return self._is_news(now, replicas)

    def _mark(self, mark: _Mark) -> None:
        marks = self._marks
        if marks and (mark.done == marks[-1].done or mark.at <= marks[-1].at):
            return
        if len(marks) > 1 and mark.at - marks[-2].at < _SPACING_S:
            marks.pop()
        marks.append(mark)
        while len(marks) > 2 and marks[1].at < mark.at - WINDOW_S:
            marks.popleft()

    def _measure(self, replicas: int) -> None:
        first, last = self._marks[0], self._marks[-1]
        if last.at - first.at >= _LEAST_S:
            self.rates[replicas] = (last.done - first.done) / (last.at - first.at)
            self.unit_steps = max(0, last.steps - first.steps) / (last.done - first.done)

    def _is_news(self, now: float, replicas: int) -> bool:
        rate = self.rates.get(replicas)
        end = None if self.left is None or rate is None else now + self.left / rate
        before = self._told_end
        if end is None or before is None:
            self._told_end = end
            return end is not before
        news = abs(end - before) > max(_NEWS_S, _NEWS_SHARE * (end - now))
        self._told_end = end if news else before
        return news


def with_rate(job: JobView, progress_rate: ProgressRate) -> JobView:
    """Return the job with its measured rates, restart cost and remaining work.

    The fields of a JobView hold as of `since`: so the remaining work of a running job is the reported one
    plus what it has done since it got its places.
    """
    # Converted to steps: a unit is the same on all sizes, while a step has more samples on more ranks.
    scale = progress_rate.unit_steps or 1.0
    seen = replace(
        job,
        rates=tuple(sorted((replicas, rate * scale) for replicas, rate in progress_rate.rates.items())),
        gradient_bytes=progress_rate.gradient_bytes if progress_rate.unit_steps else 0,
        restart_cost_s=job.restart_cost_s
        if progress_rate.restart_cost_s is None
        else progress_rate.restart_cost_s,
    )
    if progress_rate.left is None or not progress_rate.rates:
        return seen
    left_s = progress_rate.left * scale / speed(seen, seen.min_replicas)
    if seen.runs:
        works_from = seen.since + (seen.restart_cost_s if seen.consumed_slot_s else 0.0)
        left_s += max(0.0, progress_rate.received_at - works_from) * gain(
            seen, seen.min_replicas, seen.replicas
        )
    return replace(seen, remaining_s=left_s)
