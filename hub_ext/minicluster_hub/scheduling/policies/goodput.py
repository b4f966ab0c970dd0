"""Goodput: each slot goes to the job that gains most speed from it, by measured speed-ups.

Each job gets its minimum in the order of arrival. Each further replica goes to the job where it adds most to
the sum of -1/s over all jobs, where s is a job's speed as a multiple of that on its minimum. This is the
fitness function of Pollux, the generalised mean of the speed-ups with the power -1 (Qiao et al., OSDI 2021).
It is maximised replica by replica as in Optimus (Peng et al., EuroSys 2018), not by a genetic search.
Speed-ups are measured (JobView.rates); until they are, k^0.95 is assumed. A size other than a job's present
one is discounted by the share of the remaining time that the restart takes. Users choose the batch sizes;
this policy does not change them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import ClassVar

from minicluster_hub.scheduling.base import JobView, Plan, Snapshot, Topology
from minicluster_hub.scheduling.planning.ageing import AGE_BOUND_S, Ageing
from minicluster_hub.scheduling.planning.estimates import HOUR_S, likely_remaining_s
from minicluster_hub.scheduling.planning.sharing import add_one, elastic, minimums, plan_of
from minicluster_hub.scheduling.planning.speedups import gain
from minicluster_hub.scheduling.planning.trial import Trial

Step = tuple[float, tuple[float, int], int]
"""(-gain per replica, submit_order of the job, number of replicas after it): sorts the best first."""


@dataclass(frozen=True, slots=True)
class Goodput:
    """unknown_s: assumed remaining time of a job without other data, in seconds on its minimum.

    min_gain: the least speed that a further replica must add, as a share of the speed per replica on the
        minimum.
    """

    preemptive: ClassVar[bool] = True
    elastic: ClassVar[bool] = True
    unknown_s: float = HOUR_S
    min_gain: float = 0.1
    age_bound_s: float = AGE_BOUND_S

    def plan(self, snapshot: Snapshot) -> Plan:
        order = sorted(elastic(snapshot), key=lambda job: job.submit_order)
        trial = minimums(snapshot, order, Ageing(self.age_bound_s))
        self._climb(trial, {job.job_id: job for job in order if job.job_id in trial.places}, snapshot.now)
        return plan_of(trial, snapshot, Ageing(self.age_bound_s))

    def _climb(self, trial: Trial, jobs: dict[int, JobView], now: float) -> None:
        """Take the best step of all jobs again and again; after a step of a job comes its next one."""
        steps = [step for job in jobs.values() for step in self._best_step(job, trial, now)]
        heapify(steps)
        while steps and trial.free.count:
            _, (_, job_id), replicas = heappop(steps)
            job = jobs[job_id]
            while trial.replicas(job) < replicas and add_one(trial, job):
                pass
            if trial.replicas(job) == replicas:
                for step in self._best_step(job, trial, now):
                    heappush(steps, step)

    def _best_step(self, job: JobView, trial: Trial, now: float) -> Iterator[Step]:
        """Yield the step up that adds most speed per replica; none if no step adds enough."""
        given = trial.replicas(job)
        largest = min(job.max_replicas, given + int(trial.free.count // job.slots_per_replica))
        sizes = _tidy(job, range(given + 1, largest + 1), trial.snapshot.topology)
        speeds = {size: self._speed(job, size, now) for size in (given, *sizes)}
        steps = (
            ((1 / speeds[given] - 1 / speeds[size]) / (size - given), size)
            for size in sizes
            if (speeds[size] - speeds[given]) * job.min_replicas >= self.min_gain * (size - given)
        )
        best = max(steps, key=lambda step: (step[0], -step[1]), default=None)
        if best is not None:
            yield -best[0], job.submit_order, best[1]

    def _speed(self, job: JobView, replicas: int, now: float) -> float:
        """Return the speed as a multiple of that on the minimum, with the cost of a restart included."""
        times = gain(job, job.min_replicas, replicas)
        if not job.runs or replicas == job.replicas:
            return times
        left_s = likely_remaining_s(job, now, self.unknown_s) / gain(job, job.min_replicas, job.replicas)
        return times * left_s / (left_s + job.restart_cost_s) if left_s else times


def _tidy(job: JobView, sizes: Iterable[int], topology: Topology) -> list[int]:
    """Return the sizes that leave usable room for other gangs: powers of two, then multiples of half a node.

    If any size is allowed, gangs span more nodes than necessary for 60 % of the run time on Pollux's first
    workload.
    """
    if job.one_replica_per_node:
        return list(sizes)
    node = int(max(topology.slots.values(), default=0) // job.slots_per_replica)
    half = node // 2 or 1
    return [size for size in sizes if size % half == 0 or (size < node and size.bit_count() == 1)]
