"""When waiting jobs may start: the cluster as it is, played on by the simulator as if nobody else came.

How long a job takes tells its progress, if it logs any; else half of its time limit, for users set limits far
beyond the run times (Mu'alem and Feitelson, IEEE TPDS 2001), and who believes them foretells waits that are
many times too long. A job that has outlived that half goes on for as long again as it has run: run times have
heavy tails (Harchol-Balter and Downey, SIGMETRICS 1996).

A job without progress and without a limit is played as one that never ends. So no start is told that rests on
a guess of its end; one that needs its slots is not told at all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from math import inf

from minicluster_hub.scheduling.allocation.free_slots import count_slots
from minicluster_hub.scheduling.base import JobView, Placement, Policy, Snapshot
from minicluster_hub.simulator.course import gets_on_from
from minicluster_hub.simulator.model import Model
from minicluster_hub.simulator.replay import SimulatedScheduler, Simulation, SimulationStuck, Start, go_on
from minicluster_hub.simulator.work import Work, real_work

LIMIT_SHARE = 0.5
"""Of its time limit that a job is taken to run."""

BOUNDED = frozenset({"fifo", "round_robin", "time_slice", "backfill", "priority"})
"""Policies under which `latest_starts` holds for 95 of 100 jobs or more (bench/policies/forecast.py); under
the others jobs that come later go before too often."""

_STILL_S = 3600.0
"""So long it looks on while no job runs whose end is known: a policy may let jobs take turns for ever."""

_OVERDUE_SHARE = 0.1
"""A job that should have ended goes on for this share of the time that it has run."""


def forecast(
    snapshot: Snapshot,
    policy: Policy,
    placement: Placement,
    model: Model | None = None,
    *,
    limit_share: float = LIMIT_SHARE,
    most_moments: int = 5_000,
    rest: Callable[[], None] = go_on,
) -> Mapping[int, float]:
    """Return when each waiting job is expected to start. Of those that are missing nothing can be said.

    limit_share: of its time limit that a job of unknown progress is taken to run.
    most_moments: at which something happens until it stops looking ahead; each costs a plan.
    rest: called after each plan, for whoever computes beside others.
    """
    scheduler = SimulatedScheduler(snapshot.topology, policy, placement, model or Model(), rest=rest)
    start = Start(snapshot.obtainable(), snapshot.now, snapshot.servers, snapshot.usage)
    works = [_work(job, snapshot.now, scheduler, limit_share) for job in snapshot.jobs]
    simulation = Simulation(scheduler, start, works)
    return dict(_starts(simulation, {job.job_id for job in snapshot.waiting}, most_moments))


def latest_starts(
    snapshot: Snapshot, policy: Policy, placement: Placement, rest: Callable[[], None] = go_on
) -> Mapping[int, float]:
    """Return by when waiting jobs start even if all jobs run to their time limits.

    Of those before which a job without a limit goes, and of all while such a one runs, nothing can be said.
    Jobs that come later may go before them where the policy allows it.
    """
    if any(job.time_limit_s is None for job in snapshot.running):
        return {}
    blind = replace(snapshot, jobs=tuple(replace(job, remaining_s=None) for job in snapshot.jobs))
    starts = forecast(blind, policy, placement, limit_share=1.0, rest=rest)
    endless = (starts.get(job.job_id, inf) for job in snapshot.waiting if job.time_limit_s is None)
    known_until = min(endless, default=inf)
    return {job_id: at for job_id, at in starts.items() if at <= known_until}


def _starts(simulation: Simulation, waiting: set[int], moments: int) -> Iterator[tuple[int, float]]:
    look_until = simulation.now + _STILL_S
    for _ in range(moments):
        if not waiting or simulation.now > look_until:
            return
        try:
            simulation.advance()
        except SimulationStuck:
            return
        started = [job_id for job_id, course in simulation.courses.items() if course.started_at is not None]
        yield from ((job_id, simulation.now) for job_id in sorted(waiting.intersection(started)))
        waiting.difference_update(started)
        if any(course.ends_at < inf for course in simulation.courses.values()):
            look_until = simulation.now + _STILL_S


def _work(job: JobView, now: float, scheduler: SimulatedScheduler, limit_share: float) -> Work:
    """Return a job as it is now; what is left is told as of the moment when it got its places."""
    work = real_work(job, job.min_chunks, 0.0, scheduler.topology, scheduler.model)
    if not job.runs:
        has_run_s = job.attained_slot_s / (job.min_chunks * job.chunk_slots)
        guess_s = _runs_on_s(job, has_run_s, limit_share)
        return replace(work, left_s=guess_s if job.remaining_s is None else job.remaining_s)
    rate = work.speeds.rate(count_slots(job.places), len(job.places))
    done_s = rate * max(0.0, now - gets_on_from(job))
    if job.remaining_s is None:
        left_s = rate * _runs_on_s(job, job.attained(now) / count_slots(job.places), limit_share)
    else:
        left_s = job.remaining_s - done_s
    if left_s <= 0:
        left_s = rate * _OVERDUE_SHARE * (now - job.since)
    return replace(work, left_s=done_s + left_s)


def _runs_on_s(job: JobView, has_run_s: float, limit_share: float) -> float:
    """Return how much longer a job of unknown progress runs that has run so long; inf: nobody knows."""
    if job.time_limit_s is None:
        return inf
    likely_s = limit_share * job.time_limit_s
    if has_run_s < likely_s:
        return likely_s - has_run_s
    return min(has_run_s, job.time_limit_s - has_run_s)
