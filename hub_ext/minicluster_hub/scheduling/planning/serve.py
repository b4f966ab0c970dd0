"""Serves a queue of waiting and running jobs from its head; all policies with one order use it."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from minicluster_hub.scheduling.base import JobView, Plan, Snapshot
from minicluster_hub.scheduling.planning.ageing import NO_AGEING, Ageing
from minicluster_hub.scheduling.planning.moments import become_preemptible, soonest
from minicluster_hub.scheduling.planning.trial import PreemptionClass, Trial


def nobody(job: JobView) -> bool:
    return False


def everybody(job: JobView) -> bool:
    return True


def serve(
    snapshot: Snapshot,
    order: Iterable[JobView],
    *,
    preemption_class: PreemptionClass | None = None,
    reserves: Callable[[JobView], bool] = nobody,
    ageing: Ageing = NO_AGEING,
    moments: Iterable[float] = (),
) -> Plan:
    """Return the plan in which each job of the order gets slots before the jobs after it.

    A running job in the order may lose its slots to overdue jobs, and to jobs before it if `preemption_class`
    allows that. Running jobs that are not in the order keep their slots.
    A job that does not fit is skipped. The first skipped job that is overdue, or for which `reserves` is
    true, gets a reservation: jobs after it start only if they do not delay it.
    moments: when the order changes even if nothing happens.
    """
    now = snapshot.now
    jobs = ageing.first(order, now)
    preemption_class = preemption_class and ageing.with_overdue_first(preemption_class, jobs, now)
    trial = Trial(snapshot, [job for job in jobs if job.runs])
    for job in jobs:
        if job.runs:
            trial.keep(job)
        elif not trial.start(job, preemption_class) and (reserves(job) or ageing.overdue(job, now)):
            trial.reserve(job, preemption_class)
        if not trial.free.count and not trial.preemptible:
            break
    left = trial.left_waiting()
    coming = (*moments, *become_preemptible(snapshot), *ageing.moments(left, now)) if left else ()
    return Plan(
        trial.grants(), soonest(now, coming), head_blocks=trial.head_blocks(ageing), reserved=trial.reserved()
    )
