"""How much faster a job is on more replicas: as measured, otherwise by a power law.

Between two measured sizes the speed is interpolated linearly in logarithms; beyond them it is a power of the
number of replicas. Optimus (Peng et al., EuroSys 2018) and Pollux (Qiao et al., OSDI 2021) fit curves with
more parameters to the same measurements; a lab's jobs run on three or four sizes, too few for more
parameters.
"""

from __future__ import annotations

from math import log

from minicluster_hub.scheduling.base import JobView

DEFAULT_EXPONENT = 0.95
"""k replicas are assumed to be k^0.95 times as fast as one until speeds are measured."""


def speed(job: JobView, replicas: int) -> float:
    """Return a job's speed on that many replicas. Its unit differs by job: use only ratios."""
    seen = [(size, rate) for size, rate in job.rates if rate > 0]
    below = max((point for point in seen if point[0] <= replicas), default=None)
    above = min((point for point in seen if point[0] > replicas), default=None)
    if below is None:
        size, rate = above or (1, 1.0)
        return rate * (replicas / size) ** DEFAULT_EXPONENT
    exponent = _slope(below, above) if above else _slope_beyond(below, seen)
    return below[1] * (replicas / below[0]) ** exponent


def gain(job: JobView, have: int, want: int) -> float:
    """Return the speed on `want` replicas, as a multiple of that on `have`."""
    return speed(job, want) / speed(job, have)


def remaining_s(job: JobView, now: float) -> float | None:
    """Return the work that remains now, in seconds on `min_replicas` replicas; None: unknown."""
    if job.remaining_s is None or not job.runs:
        return job.remaining_s
    started_s = job.restart_cost_s if job.consumed_slot_s else 0.0
    done_s = max(0.0, now - job.since - started_s) * gain(job, job.min_replicas, job.replicas)
    return max(0.0, job.remaining_s - done_s)


def _slope(one: tuple[int, float], other: tuple[int, float]) -> float:
    return log(other[1] / one[1]) / log(other[0] / one[0])


def _slope_beyond(last: tuple[int, float], seen: list[tuple[int, float]]) -> float:
    """Return the exponent beyond the largest measured size: that of the last two, within bounds."""
    before = max((point for point in seen if point[0] < last[0]), default=None)
    if before is None:
        return DEFAULT_EXPONENT
    return min(DEFAULT_EXPONENT, max(0.0, _slope(before, last)))
