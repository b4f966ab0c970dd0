"""Replicas of served models go before all batch jobs, whatever the policy: somebody waits for each answer.

The policy then plans the other jobs on the slots that are left. A replica takes free slots; if there are
none, it preempts batch jobs where the policy preempts at all. Running replicas are never moved: they have no
snapshot.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from minicluster_hub.scheduling.allocation.free_slots import Places, common
from minicluster_hub.scheduling.base import Grant, JobView, Plan, Policy, Snapshot
from minicluster_hub.scheduling.planning.moments import movable
from minicluster_hub.scheduling.planning.trial import Trial


def plan_with_replicas(policy: Policy, snapshot: Snapshot) -> Plan:
    """Return the policy's plan, with the waiting replicas of models before it."""
    replicas = sorted((job for job in snapshot.waiting if job.serves), key=lambda job: job.submit_order)
    if not replicas:
        return policy.plan(snapshot)
    batch = sorted(
        (job for job in movable(snapshot) if policy.preemptive and not (job.serves or job.only_shrinks)),
        key=lambda job: (-job.priority, job.submit_order),
    )
    trial = Trial(snapshot, batch)
    started: list[JobView] = []
    for job in replicas:
        if trial.start(job, _preemption_class):
            started.append(job)
        else:
            trial.reserve(job, _preemption_class)
    plan = policy.plan(_rest(snapshot, trial, replicas, batch))
    first = tuple(Grant(job.job_id, job.min_replicas) for job in started)
    return replace(plan, grants=(*first, *plan.grants), reserved=(*plan.reserved, *trial.reserved()))


def _preemption_class(job: JobView) -> int:
    return 0 if job.serves else 1


def _rest(
    snapshot: Snapshot, trial: Trial, replicas: Sequence[JobView], batch: Sequence[JobView]
) -> Snapshot:
    """Return the snapshot without the waiting replicas, the slots that they get, and the jobs that they
    preempt.
    """
    keeping = {holder.job_id for holder in trial.preemptible.values() if isinstance(holder, JobView)}
    gone = {job.job_id for job in (*replicas, *batch)} - keeping
    taken: list[Places] = [trial.places[job.job_id] for job in replicas if job.job_id in trial.places]
    free, releasing = snapshot.free.copy(), snapshot.releasing.copy()
    for places in (*taken, trial.reserved()):
        for slots in (free, releasing):
            slots.remove(common(places, slots))
    jobs = tuple(job for job in snapshot.jobs if job.job_id not in gone)
    return replace(snapshot, jobs=jobs, free=free, releasing=releasing)
