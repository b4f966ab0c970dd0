"""How often one user, or one task, may ask: token buckets. Who floods slows itself down, and nobody else."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass

from traitlets import Float, Integer
from traitlets.config import Configurable

_MOST_KEPT = 10_000

_BURST_S = 5.0
"""After a pause, as much may come at once as otherwise in this time."""


@dataclass(frozen=True, slots=True)
class Rate:
    """per_s: requests that may come for ever. burst: those that may come at once after a pause."""

    per_s: float
    burst: float


class Buckets:
    """One bucket for each who asks; the one that was used least recently is forgotten first."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._levels: OrderedDict[Hashable, tuple[float, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._levels)

    def take(self, key: Hashable, rate: Rate) -> float:
        """Take one request; return 0.0, or in how many seconds there is one. A refused one costs nothing."""
        wait_s = self.wait_s(key, rate)
        if not wait_s:
            self.charge(key, rate, 1.0)
        return wait_s

    def wait_s(self, key: Hashable, rate: Rate) -> float:
        """Return in how many seconds there is one, and take nothing."""
        return max(0.0, 1.0 - self._level(key, rate)) / rate.per_s

    def charge(self, key: Hashable, rate: Rate, more: float) -> None:
        """Take what a request cost more than another one; it may leave a debt."""
        self._keep(key, self._level(key, rate) - more)

    def _level(self, key: Hashable, rate: Rate) -> float:
        level, at = self._levels.get(key, (rate.burst, 0.0))
        return min(rate.burst, level + (self._clock() - at) * rate.per_s)

    def _keep(self, key: Hashable, level: float) -> None:
        self._levels[key] = level, self._clock()
        self._levels.move_to_end(key)
        if len(self._levels) > _MOST_KEPT:
            self._levels.popitem(last=False)


# The job service's options of how often users and tasks may ask, and how many streams they hold.


class RequestOptions(Configurable):
    """Set them as options of MiniclusterHub."""

    user_requests_per_s = Float(
        200.0,
        min=1.0,
        help="Requests of one user in a second, by all their tokens together; five times as many at once. "
        "More serves scripts sooner, and lets one user slow down all others more.",
    ).tag(config=True)
    task_reports_per_s = Float(
        50.0,
        min=25.0,
        help="Reports and polls of one task in a second; its agent makes 20 at most.",
    ).tag(config=True)
    user_streams = Integer(
        256,
        min=1,
        help="Event streams that one user may hold open: one for each job that a notebook follows, and for "
        "each page. More costs memory.",
    ).tag(config=True)

    @property
    def user_rate(self) -> Rate:
        return Rate(self.user_requests_per_s, _BURST_S * self.user_requests_per_s)

    @property
    def report_rate(self) -> Rate:
        return Rate(self.task_reports_per_s, _BURST_S * self.task_reports_per_s)
