"""Limits the requests of each user and each task by token buckets, so that a flood slows only its sender."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass

from traitlets import Float, Integer
from traitlets.config import Configurable

_MOST_BUCKETS = 10_000
_BURST_S = 5.0
"""After a pause, as many requests may come at once as the rate allows in this many seconds."""


@dataclass(frozen=True, slots=True)
class Rate:
    """per_s: requests per second in the long run. burst: requests at once after a pause."""

    per_s: float
    burst: float


class Buckets:
    """One token bucket for each key; the least recently used one is forgotten first."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._levels: OrderedDict[Hashable, tuple[float, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._levels)

    def take(self, key: Hashable, rate: Rate) -> float:
        """Take one token and return 0.0; or take none and return the seconds until there is one."""
        wait_s = self.wait_s(key, rate)
        if not wait_s:
            self.charge(key, rate, 1.0)
        return wait_s

    def wait_s(self, key: Hashable, rate: Rate) -> float:
        """Return the seconds until there is a token; takes none."""
        return max(0.0, 1.0 - self._level(key, rate)) / rate.per_s

    def charge(self, key: Hashable, rate: Rate, more: float) -> None:
        """Take more tokens; the level may become negative."""
        self._levels[key] = self._level(key, rate) - more, self._clock()
        self._levels.move_to_end(key)
        if len(self._levels) > _MOST_BUCKETS:
            self._levels.popitem(last=False)

    def _level(self, key: Hashable, rate: Rate) -> float:
        level, at = self._levels.get(key, (rate.burst, 0.0))
        return min(rate.burst, level + (self._clock() - at) * rate.per_s)


class RequestOptions(Configurable):
    """Set them as options of MiniclusterHub."""

    user_requests_per_s = Float(
        200.0,
        min=1.0,
        help="Requests per second of one user with all tokens; five times as many at once. More serves "
        "scripts faster, and lets one user slow down the others more.",
    ).tag(config=True)
    task_reports_per_s = Float(
        50.0,
        min=25.0,
        help="Reports and polls of one task per second; its agent makes 20 at most.",
    ).tag(config=True)
    user_streams = Integer(
        256,
        min=1,
        help="Event streams that one user may have open: one for each job that a notebook follows, and one "
        "for each page. More costs memory.",
    ).tag(config=True)

    @property
    def user_rate(self) -> Rate:
        return Rate(self.user_requests_per_s, _BURST_S * self.user_requests_per_s)

    @property
    def report_rate(self) -> Rate:
        return Rate(self.task_reports_per_s, _BURST_S * self.task_reports_per_s)
