"""Forecasts when waiting jobs start: simulates the cluster from its present state on, without new jobs.

A job's run time is estimated from its logged progress; without progress, it is half of the time limit. Users
set limits far beyond the run times (Mu'alem and Feitelson, IEEE TPDS 2001), so limits alone would forecast
waits that are many times too long. If a job has run longer than half of its limit, it is expected to run as
long again: run times have heavy tails (Harchol-Balter and Downey, SIGMETRICS 1996).

A job without progress and without a limit never ends in the simulation. So no forecast depends on a guess of
its end, and a job that needs its slots gets no forecast.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from math import inf

from minicluster_hub.scheduling.allocation.free_slots import count_slots
from minicluster_hub.scheduling.base import JobView, Placement, Policy, Snapshot
from minicluster_hub.simulator.model import Model
from minicluster_hub.simulator.replay import (
    InitialState,
    SimulatedScheduler,
    Simulation,
    SimulationStuck,
    no_rest,
)
from minicluster_hub.simulator.simulated_job import works_from
from minicluster_hub.simulator.workload import Work, real_work

LIMIT_SHARE = 0.5
"""The share of its time limit that a job is expected to run."""

BOUNDED = frozenset({"fifo", "round_robin", "time_slice", "backfill", "priority"})
"""Policies under which `latest_starts` holds for 95 of 100 jobs or more (bench/policies/forecast.py). Under
the others, jobs that arrive later overtake too often."""

_STILL_S = 3600.0
"""The forecast ends after these seconds without a running job of known end: jobs may take turns for ever."""

_OVERDUE_SHARE = 0.1
"""An overdue job is expected to run on for this share of its run time so far."""


def forecast(
    snapshot: Snapshot,
    policy: Policy,
    placement: Placement,
    model: Model | None = None,
    *,
    limit_share: float = LIMIT_SHARE,
    most_moments: int = 5_000,
    rest: Callable[[], None] = no_rest,
) -> Mapping[int, float]:
    """Return when waiting jobs are expected to start. Jobs without a forecast are missing.

    limit_share: share of its time limit that a job of unknown progress is expected to run.
    most_moments: most events in the forecast; each costs a plan.
    rest: called after each plan, so that other threads get the processor.
    """
    scheduler = SimulatedScheduler(snapshot.topology, policy, placement, model or Model(), rest=rest)
    start = InitialState(snapshot.obtainable(), snapshot.now, snapshot.servers, snapshot.usage)
    works = [_work(job, snapshot.now, scheduler, limit_share) for job in snapshot.jobs]
    simulation = Simulation(scheduler, works, start)
    return dict(_starts(simulation, {job.job_id for job in snapshot.waiting}, most_moments))


def latest_starts(
    snapshot: Snapshot, policy: Policy, placement: Placement, rest: Callable[[], None] = no_rest
) -> Mapping[int, float]:
    """Return the latest starts of waiting jobs, if all jobs run to their time limits.

    Jobs behind one without a limit are missing; while one without a limit runs, all are. If the policy allows
    it, jobs that arrive later may overtake.
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
        started = [job_id for job_id, job in simulation.jobs.items() if job.started_at is not None]
        yield from ((job_id, simulation.now) for job_id in sorted(waiting.intersection(started)))
        waiting.difference_update(started)
        if any(job.ends_at < inf for job in simulation.jobs.values()):
            look_until = simulation.now + _STILL_S


def _work(job: JobView, now: float, scheduler: SimulatedScheduler, limit_share: float) -> Work:
    """Return the present work of a job; `left_s` counts from the time at which it got its slots."""
    work = real_work(job, job.min_replicas, 0.0, scheduler.topology, scheduler.model)
    if not job.runs:
        has_run_s = job.consumed_slot_s / (job.min_replicas * job.slots_per_replica)
        guess_s = _runs_on_s(job, has_run_s, limit_share)
        return replace(work, left_s=guess_s if job.remaining_s is None else job.remaining_s)
    rate = work.speeds.rate(count_slots(job.places), len(job.places))
    done_s = rate * max(0.0, now - works_from(job))
    if job.remaining_s is None:
        left_s = rate * _runs_on_s(job, job.consumed(now) / count_slots(job.places), limit_share)
    else:
        left_s = job.remaining_s - done_s
    if left_s <= 0:
        left_s = rate * _OVERDUE_SHARE * (now - job.since)
    return replace(work, left_s=done_s + left_s)


def _runs_on_s(job: JobView, has_run_s: float, limit_share: float) -> float:
    """Return for how many more seconds a job of unknown progress runs; inf if it has no time limit."""
    if job.time_limit_s is None:
        return inf
    likely_s = limit_share * job.time_limit_s
    if has_run_s < likely_s:
        return likely_s - has_run_s
    return min(has_run_s, job.time_limit_s - has_run_s)
