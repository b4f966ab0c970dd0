"""How long jobs are taken to run: from their progress, their time limits, or what they have run."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator

from minicluster_hub.scheduling.base import JobView
from minicluster_hub.scheduling.planning.speedups import remaining_s

HOUR_S = 3600.0
DAY_S = 24 * HOUR_S

ASSUMED_RUN_S = DAY_S
"""Without a time limit a job is taken to run for a day; one that has run longer, to end at any moment."""


def executed_s(job: JobView, now: float) -> float:
    """Return the seconds on its smallest gang that what it has had by now amounts to."""
    return job.consumed(now) / (job.min_replicas * job.slots_per_replica)


def latest_end(job: JobView, now: float) -> float:
    """Return when a job ends at the latest that runs, or starts now: by its time limit, or by assumption.

    A moment that has passed: any time now.
    """
    started = job.since if job.runs else now
    limit_s = ASSUMED_RUN_S if job.time_limit_s is None else job.time_limit_s
    return started + limit_s


def likely_remaining_s(job: JobView, now: float, unknown_s: float) -> float:
    """Return what is left to do, in seconds on `min_replicas` replicas.

    Without a logged progress: as long again as it has run, at least `unknown_s` (run times have heavy tails,
    Harchol-Balter and Downey, SIGMETRICS 1996: a job of some age is as likely as not to live as long again).
    Never more than its time limit leaves.
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
    """Yield when running jobs of unknown length have run for so long that one that waits seems shorter."""
    lengths_s = sorted(waiting_s)
    for job in running:
        if job.remaining_s is None:
            ran_s = executed_s(job, now)
            longer = bisect_right(lengths_s, max(unknown_s, ran_s))
            if longer < len(lengths_s):
                yield now + (lengths_s[longer] - ran_s) * job.min_replicas / job.replicas
