"""A queue of waiting and running jobs is served from its head: what the policies with an order share."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from minicluster_hub.scheduling.base import JobView, Plan, Snapshot
from minicluster_hub.scheduling.planning.ageing import NO_AGEING, Ageing
from minicluster_hub.scheduling.planning.moments import released, soonest
from minicluster_hub.scheduling.planning.trial import Level, Trial


def nobody(job: JobView) -> bool:
    return False


def everybody(job: JobView) -> bool:
    return True


def serve(
    snapshot: Snapshot,
    order: Iterable[JobView],
    *,
    level: Level | None = None,
    reserves: Callable[[JobView], bool] = nobody,
    ageing: Ageing = NO_AGEING,
    moments: Iterable[float] = (),
) -> Plan:
    """Return the plan where each job of the order gets slots before those after it.

    Running jobs in the order may lose their slots to those before them, where `level` allows it, and to
    overdue ones; all others keep them. Who does not fit is passed by, but the first of those that are
    overdue, or for whom it `reserves`, is not delayed by who passes.
    `moments`: when the order changes though nothing happens.
    """
    now = snapshot.now
    jobs = ageing.first(order, now)
    level = level and ageing.above(level, jobs, now)
    trial = Trial(snapshot, [job for job in jobs if job.runs])
    for job in jobs:
        if job.runs:
            trial.keep(job)
        elif not trial.start(job, level) and (reserves(job) or ageing.overdue(job, now)):
            trial.reserve(job, level)
        if not trial.free.count and not trial.preemptible:
            break
    left = trial.left_waiting()
    coming = (*moments, *released(snapshot), *ageing.moments(left, now)) if left else ()
    return Plan(trial.grants(), soonest(now, coming), in_turn=trial.in_turn(ageing), kept=trial.reserved())
