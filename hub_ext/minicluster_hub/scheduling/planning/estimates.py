"""Estimates of run times: from the progress of jobs, their time limits, or their run time so far."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator

from minicluster_hub.scheduling.base import JobView
from minicluster_hub.scheduling.planning.speedups import remaining_s

HOUR_S = 3600.0
DAY_S = 24 * HOUR_S

ASSUMED_RUN_S = DAY_S
"""The assumed run time of a job without a time limit; one that has run longer may end at any moment."""


def executed_s(job: JobView, now: float) -> float:
    """Return a job's run time so far, converted to seconds on `min_replicas` replicas."""
    return job.consumed(now) / (job.min_replicas * job.slots_per_replica)


def latest_end(job: JobView, now: float) -> float:
    """Return the latest end of a job that runs or starts now: by its time limit, else by ASSUMED_RUN_S.

    A moment in the past means that it may end at any time.
    """
    started = job.since if job.runs else now
    limit_s = ASSUMED_RUN_S if job.time_limit_s is None else job.time_limit_s
    return started + limit_s


def likely_remaining_s(job: JobView, now: float, unknown_s: float) -> float:
    """Return the remaining work, in seconds on `min_replicas` replicas.

    Without logged progress: as long again as the job has run, at least `unknown_s`. Run times have heavy
    tails (Harchol-Balter and Downey, SIGMETRICS 1996): half of the jobs of some age run as long again. It is
    never more than the time limit leaves.
    """
    known_s = remaining_s(job, now)
    guess_s = max(unknown_s, executed_s(job, now)) if known_s is None else known_s
    if job.time_limit_s is None:
        return guess_s
    ran_s = now - job.since if job.runs else 0.0
    return min(guess_s, max(0.0, job.time_limit_s - ran_s))


def overtaken_at(
    running: Iterable[JobView], waiting_s: Iterable[float], now: float, unknown_s: float
) -> Iterator[float]:
    """Yield when a waiting job will seem shorter than a running job of unknown remaining time.

    waiting_s: remaining seconds of the waiting jobs.
    """
    lengths_s = sorted(waiting_s)
    for job in running:
        if job.remaining_s is None:
            ran_s = executed_s(job, now)
            longer = bisect_right(lengths_s, max(unknown_s, ran_s))
            if longer < len(lengths_s):
                yield now + (lengths_s[longer] - ran_s) * job.min_replicas / job.replicas
