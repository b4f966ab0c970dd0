"""Simulates how other policies would have scheduled the service's past jobs.

The replay assumes an empty cluster at the first job's arrival, and the model's speeds and restarts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import inf

from minicluster_hub.jobs.records import JobRecord, UseRecord
from minicluster_hub.scheduling.base import JobView, Topology
from minicluster_hub.simulator.metrics import ReplayMetrics, measure
from minicluster_hub.simulator.model import Model
from minicluster_hub.simulator.replay import SimulatedScheduler, all_free, simulate
from minicluster_hub.simulator.simulated_job import Outcome
from minicluster_hub.simulator.workload import real_work


@dataclass(frozen=True, slots=True)
class PastJob:
    """A job that has run. view: at its submission. replicas: how many it had, for `ran_s` in all."""

    view: JobView
    started_at: float
    ended_at: float
    ran_s: float
    replicas: int


def comparable(history: Iterable[PastJob], topology: Topology) -> list[PastJob]:
    """Return the jobs that have run and that fit on this cluster, in the order of their arrival."""
    room = all_free(topology)
    fitting = [
        job
        for job in history
        if job.ran_s > 0
        and job.view.min_replicas
        <= room.replicas_that_fit(
            job.view.slots_per_replica, one_replica_per_node=job.view.one_replica_per_node
        )
    ]
    return sorted(fitting, key=lambda job: (job.view.submitted_at, job.view.job_id))


def actual(jobs: Sequence[PastJob], topology: Topology) -> ReplayMetrics:
    """Return the actual figures of these jobs (at least one), without network bytes."""
    return measure([_outcome(job) for job in jobs], sum(topology.slots.values()))


def what_if(jobs: Sequence[PastJob], scheduler: SimulatedScheduler) -> ReplayMetrics:
    """Return the simulated figures of these (comparable) jobs. Raises SimulationStuck."""
    topology, model = scheduler.topology, scheduler.model
    views = (replace(job.view, restart_cost_s=model.restart_s) for job in jobs)
    works = [
        real_work(view, job.replicas, job.ran_s, topology, model)
        for view, job in zip(views, jobs, strict=True)
    ]
    replay = simulate(works, scheduler)
    return measure(replay.outcomes, sum(scheduler.topology.slots.values()))


def assumed(model: Model) -> Iterator[str]:
    """Yield the assumptions in words."""
    yield "the cluster was empty when the first of these jobs arrived, and had the nodes that are up now"
    yield f"every job can be moved, at the cost of {model.restart_s:g} s"
    yield f"a job that got slots keeps them for {model.min_run_s:g} s at least"
    yield f"k slots are k^{model.exponent:g} times as fast as one"
    yield f"a job on several nodes has {model.cross_node_efficiency:g} of the speed of one on one node"
    yield "the remaining time of a job is known exactly once it has started; time limits end no job"
    yield "notebook servers, and jobs that have not ended yet, held no slots; quotas held back no job"


def _outcome(job: PastJob) -> Outcome:
    view, slots = job.view, job.replicas * job.view.slots_per_replica
    return Outcome(
        job_id=view.job_id,
        owner=view.owner,
        slots=slots,
        submitted_at=view.submitted_at,
        started_at=job.started_at,
        ended_at=job.ended_at,
        alone_s=job.ran_s,
        held_s=job.ran_s,
        crossed_s=job.ran_s if view.one_replica_per_node and job.replicas > 1 else 0.0,
        needless_s=0.0,
        slot_s=job.ran_s * slots,
        longest_wait_s=job.started_at - view.submitted_at,
        restarts=0,
        network_bytes=0.0,
    )


def past_jobs(records: Iterable[JobRecord], uses: Iterable[UseRecord]) -> Iterator[PastJob]:
    """Yield the jobs that have ended and had slots, from their records and their use of slots."""
    by_job: dict[int, list[tuple[UseRecord, float]]] = {}
    for use in uses:
        if use.job_id is not None and use.ended_at is not None and use.ended_at > use.began_at:
            by_job.setdefault(use.job_id, []).append((use, use.ended_at))
    for record in records:
        if record.ended_at is not None and record.id in by_job:
            yield _past_job(record, record.ended_at, by_job[record.id])


def _past_job(record: JobRecord, ended_at: float, uses: Sequence[tuple[UseRecord, float]]) -> PastJob:
    """Return a past job. If its number of replicas changed, it counts as the average all the time."""
    spec = record.spec
    least, most = (spec.replicas.min, spec.replicas.max) if spec.replicas else (1, 1)
    replica_s = sum(use.slots * (end - use.began_at) for use, end in uses) / spec.slots_per_replica
    held_s = _union_s([(use.began_at, end) for use, end in uses])
    replicas = max(least, min(most, round(replica_s / held_s)))
    view = JobView(
        job_id=record.id,
        owner=record.owner,
        submitted_at=record.created_at,
        min_replicas=least,
        max_replicas=most,
        slots_per_replica=spec.slots_per_replica,
        one_replica_per_node=spec.slots is None,
        priority=spec.priority,
        since=record.created_at,
        time_limit_s=spec.timeout_s,
        not_preemptible_until=-inf,
    )
    return PastJob(view, min(use.began_at for use, _ in uses), ended_at, replica_s / replicas, replicas)


def _union_s(intervals: Sequence[tuple[float, float]]) -> float:
    """Return the length of the union of the intervals."""
    total, reached = 0.0, float("-inf")
    for began_at, ended_at in sorted(intervals):
        total += max(0.0, ended_at - max(began_at, reached))
        reached = max(reached, ended_at)
    return total
