"""Counts the requests to each model: how many, how long, how many errors.

Of this service's own front alone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from math import ceil

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from minicluster.wire.serving.models import ModelFigures

_TIMES = 2000
_MINUTE_S = 60
_BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_ERROR = 500


@dataclass
class _Counts:
    """times_s: of the newest requests. seconds: requests by second, of the last minute. buckets: see
    _BOUNDS_S.
    """

    requests: int = 0
    errors: int = 0
    sum_s: float = 0.0
    by_status: dict[int, int] = field(default_factory=dict[int, int])
    times_s: deque[float] = field(default_factory=lambda: deque(maxlen=_TIMES))
    seconds: dict[int, int] = field(default_factory=dict[int, int])
    buckets: list[int] = field(default_factory=lambda: [0] * len(_BOUNDS_S))


class Figures:
    """Requests by model key. clock: in seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._models: dict[str, _Counts] = {}

    def count(self, key: str, status: int, time_s: float, weight: int = 1) -> None:
        """Count a request. weight: how many it stands for."""
        counts = self._models.setdefault(key, _Counts())
        counts.requests += weight
        counts.errors += weight if status >= _ERROR else 0
        counts.sum_s += weight * time_s
        counts.by_status[status] = counts.by_status.get(status, 0) + weight
        counts.times_s.append(time_s)
        now = int(self._clock())
        counts.seconds[now] = counts.seconds.get(now, 0) + weight
        if len(counts.seconds) > 2 * _MINUTE_S:
            counts.seconds = {at: one for at, one in counts.seconds.items() if at > now - _MINUTE_S}
        place = next((place for place, bound in enumerate(_BOUNDS_S) if time_s <= bound), None)
        if place is not None:
            counts.buckets[place] += weight

    def of(self, key: str) -> ModelFigures:
        """Return what is shown of a model."""
        counts = self._models.get(key)
        if counts is None:
            return ModelFigures()
        since = int(self._clock()) - _MINUTE_S
        lately = sum(one for at, one in counts.seconds.items() if at > since)
        times = sorted(counts.times_s)
        return ModelFigures(
            requests=counts.requests,
            errors=counts.errors,
            per_s=lately / _MINUTE_S,
            p50_s=_percentile(times, 0.5),
            p99_s=_percentile(times, 0.99),
        )

    def forget(self, key: str) -> None:
        self._models.pop(key, None)

    def items(self) -> Iterable[tuple[str, _Counts]]:
        return self._models.items()


def _percentile(ordered: list[float], share: float) -> float | None:
    return ordered[max(0, ceil(share * len(ordered)) - 1)] if ordered else None


class FiguresCollector(Collector):
    """The figures for Prometheus, read at each scrape."""

    def __init__(self, figures: Figures) -> None:
        self._figures = figures

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterator[Metric]:
        requests = CounterMetricFamily(
            "minicluster_model_requests", "Requests to served models", labels=("model", "status")
        )
        seconds = HistogramMetricFamily(
            "minicluster_model_seconds", "Time until a model's answer", labels=("model",)
        )
        for key, counts in self._figures.items():
            for status, count in sorted(counts.by_status.items()):
                requests.add_metric([key, str(status)], count)
            total, buckets = 0, list[tuple[str, float]]()
            for bound, count in zip(_BOUNDS_S, counts.buckets, strict=True):
                total += count
                buckets.append((f"{bound:g}", total))
            buckets.append(("+Inf", counts.requests))
            seconds.add_metric([key], buckets, sum_value=counts.sum_s)
        yield requests
        yield seconds
