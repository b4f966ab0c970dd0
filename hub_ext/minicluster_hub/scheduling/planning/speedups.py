"""How much faster a job is on more replicas: as it was seen to be, and where it was not, by a power law.

Between two measured sizes the speed is taken from a straight line in logarithms, beyond them from a power
of the number of replicas. Optimus (Peng et al., EuroSys 2018) and Pollux (Qiao et al., OSDI 2021) fit curves
with more parameters to the same measurements; a lab's jobs run on three or four sizes, which fix no more.
"""

from __future__ import annotations

from math import log

from minicluster_hub.scheduling.base import JobView

DEFAULT_EXPONENT = 0.95
"""k replicas are k^0.95 times as fast as one, as long as nobody has seen otherwise."""


def speed(job: JobView, replicas: int) -> float:
    """Return how fast it is on so many replicas, in a unit of its own: only ratios tell anything."""
    seen = [(size, rate) for size, rate in job.rates if rate > 0]
    below = max((point for point in seen if point[0] <= replicas), default=None)
    above = min((point for point in seen if point[0] > replicas), default=None)
    if below is None:
        size, rate = above or (1, 1.0)
        return rate * (replicas / size) ** DEFAULT_EXPONENT
    exponent = _slope(below, above) if above else _slope_beyond(below, seen)
    return below[1] * (replicas / below[0]) ** exponent


def gain(job: JobView, have: int, want: int) -> float:
    """Return how many times as fast it is on `want` replicas as on `have`."""
    return speed(job, want) / speed(job, have)


def remaining_s(job: JobView, now: float) -> float | None:
    """Return what is left to do by now, in seconds on `min_replicas` replicas; None: nobody knows."""
    if job.remaining_s is None or not job.runs:
        return job.remaining_s
    started_s = job.move_s if job.consumed_slot_s else 0.0
    done_s = max(0.0, now - job.since - started_s) * gain(job, job.min_replicas, job.replicas)
    return max(0.0, job.remaining_s - done_s)


def _slope(one: tuple[int, float], other: tuple[int, float]) -> float:
    return log(other[1] / one[1]) / log(other[0] / one[0])


def _slope_beyond(last: tuple[int, float], seen: list[tuple[int, float]]) -> float:
    """Return the exponent after the largest measured size: that of the last two, if it is modest."""
    before = max((point for point in seen if point[0] < last[0]), default=None)
    if before is None:
        return DEFAULT_EXPONENT
    return min(DEFAULT_EXPONENT, max(0.0, _slope(before, last)))
