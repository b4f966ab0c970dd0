"""Elastic jobs share the slots: each gets its minimum in order, then the rest is given one by one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from minicluster_hub.scheduling.base import JobView, Plan, Snapshot
from minicluster_hub.scheduling.planning.ageing import AGE_BOUND_S, Ageing
from minicluster_hub.scheduling.planning.estimates import HOUR_S, likely_remaining_s
from minicluster_hub.scheduling.planning.moments import become_preemptible, movable, soonest
from minicluster_hub.scheduling.planning.speedups import gain
from minicluster_hub.scheduling.planning.trial import Trial


@dataclass(frozen=True, slots=True)
class Sharing:
    """The common part of elastic policies; only their order differs.

    unknown_s: assumed remaining time of a job without other data, in seconds on its minimum.
    least_times: a running job grows only if that saves at least this many times the cost of its restart.
    """

    preemptive: ClassVar[bool] = True
    elastic: ClassVar[bool] = True
    unknown_s: float = HOUR_S
    least_times: float = 2.0
    age_bound_s: float = AGE_BOUND_S

    def share(self, snapshot: Snapshot, order: Sequence[JobView], moments: Iterable[float] = ()) -> Plan:
        """Return the plan for this order. Jobs that would grow in vain keep their size."""
        caps: dict[int, int] = {}
        while True:
            trial = minimums(snapshot, order, Ageing(self.age_bound_s))
            add_in_turn(trial, order, caps)
            vain = [job for job in order if self._grows_in_vain(job, trial.replicas(job), snapshot.now)]
            if not vain:
                return plan_of(trial, snapshot, Ageing(self.age_bound_s), moments)
            caps |= {job.job_id: job.replicas for job in vain}

    def _grows_in_vain(self, job: JobView, replicas: int, now: float) -> bool:
        if not job.runs or replicas <= max(job.replicas, job.min_replicas):
            return False
        left_s = likely_remaining_s(job, now, self.unknown_s) / gain(job, job.min_replicas, job.replicas)
        return left_s - left_s / gain(job, job.replicas, replicas) < self.least_times * job.restart_cost_s


def elastic(snapshot: Snapshot) -> list[JobView]:
    """Return the jobs whose number of replicas the policy decides."""
    return [*movable(snapshot), *snapshot.waiting]


def minimums(snapshot: Snapshot, order: Iterable[JobView], ageing: Ageing) -> Trial:
    """Give each job its minimum in this order, running jobs on their own nodes if possible.

    The first overdue job that does not fit gets a reservation.
    """
    trial = Trial.of_all_movable(snapshot)
    for job in ageing.first(order, snapshot.now):
        if not trial.free.count:
            break
        seated = trial.seat(job, job.min_replicas, _nodes(job, trial)) or trial.move_for(job)
        if not seated and ageing.overdue(job, snapshot.now):
            trial.reserve(job)
    return trial


def add_one(trial: Trial, job: JobView) -> bool:
    """Give a job one more replica, on one of its own nodes if possible."""
    return trial.add_one(job, _nodes(job, trial))


def add_in_turn(trial: Trial, order: Iterable[JobView], caps: Mapping[int, int]) -> None:
    """Give one more replica to each job in turn, up to its cap, until no job can take one."""

    def grows(job: JobView) -> bool:
        return trial.replicas(job) < caps.get(job.job_id, job.max_replicas) and add_one(trial, job)

    growing = [job for job in order if job.job_id in trial.places]
    while growing and trial.free.count:
        growing = [job for job in growing if grows(job)]


def plan_of(trial: Trial, snapshot: Snapshot, ageing: Ageing, moments: Iterable[float] = ()) -> Plan:
    """Return the plan of a trial. moments: when jobs that wait now might start."""
    left = trial.left_waiting()
    late = (*moments, *ageing.moments(left, snapshot.now)) if left else ()
    coming = (*become_preemptible(snapshot), *late)
    return Plan(
        trial.grants(),
        soonest(snapshot.now, coming),
        head_blocks=trial.head_blocks(ageing),
        reserved=trial.reserved(),
    )


def _nodes(job: JobView, trial: Trial) -> Iterator[str]:
    """Yield nodes for more replicas: those in the trial, those that the job has, then the fullest ones."""
    given = [node for node, _ in trial.places.get(job.job_id, ())]
    held = [node for node, _ in sorted(job.places, key=lambda place: (-len(place[1]), place[0]))]
    near = dict.fromkeys((*given, *held))
    yield from (node for node in near if not (job.one_replica_per_node and node in given))
    yield from (node for node in trial.free.nodes(job.slots_per_replica) if node not in near)
