"""Goodput: the slots go where the measured speed-ups of jobs gain most.

Each job gets its minimum in the order of arrival. Each further replica goes to the job where it adds most to
the sum of -1/s over all jobs, where s is a job's speed as a multiple of that on its minimum. This is the
fitness of Pollux, the generalised mean of the speed-ups with the power -1 (Qiao et al., OSDI 2021), climbed
replica by replica as in Optimus (Peng et al., EuroSys 2018) instead of by a genetic search. Speed-ups are
measured (JobView.rates); until they are, k^0.95 is assumed. A size other than a job's present one counts less
by the share of its remaining time that the move would take. Batch sizes are the user's and stay.
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
"""(-what each replica of it adds, the job's turn, to how many replicas): sorts the best first."""


@dataclass(frozen=True, slots=True)
class Goodput:
    """`unknown_s`: what is left of a job of which nothing is known, in seconds on its minimum.

    min_gain: a replica is given if it adds at least so much of the speed of one of the minimum's.
    """

    moves_running: ClassVar[bool] = True
    elastic: ClassVar[bool] = True
    unknown_s: float = HOUR_S
    min_gain: float = 0.1
    age_bound_s: float = AGE_BOUND_S

    def plan(self, snapshot: Snapshot) -> Plan:
        order = sorted(elastic(snapshot), key=lambda job: job.turn)
        trial = minimums(snapshot, order, Ageing(self.age_bound_s))
        self._climb(trial, {job.job_id: job for job in order if job.job_id in trial.places}, snapshot.now)
        return plan_of(trial, snapshot, Ageing(self.age_bound_s))

    def _climb(self, trial: Trial, jobs: dict[int, JobView], now: float) -> None:
        """Take the best step of all, again and again; a job that has taken one gets its next."""
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
        """Yield the step up from what a job was given that adds most a replica, none if none adds enough."""
        given = trial.replicas(job)
        largest = min(job.max_replicas, given + trial.free.count // job.slots_per_replica)
        sizes = _tidy(job, range(given + 1, largest + 1), trial.snapshot.topology)
        speeds = {size: self._speed(job, size, now) for size in (given, *sizes)}
        steps = (
            ((1 / speeds[given] - 1 / speeds[size]) / (size - given), size)
            for size in sizes
            if (speeds[size] - speeds[given]) * job.min_replicas >= self.min_gain * (size - given)
        )
        best = max(steps, key=lambda step: (step[0], -step[1]), default=None)
        if best is not None:
            yield -best[0], job.turn, best[1]

    def _speed(self, job: JobView, replicas: int, now: float) -> float:
        """Return a multiple of the speed on the minimum; a move's cost is in it."""
        times = gain(job, job.min_replicas, replicas)
        if not job.runs or replicas == job.replicas:
            return times
        left_s = likely_remaining_s(job, now, self.unknown_s) / gain(job, job.min_replicas, job.replicas)
        return times * left_s / (left_s + job.move_s) if left_s else times


def _tidy(job: JobView, sizes: Iterable[int], topology: Topology) -> list[int]:
    """Return the sizes that leave room of a good shape to others: powers of two, then halves of nodes.

    With any size, gangs cross nodes that need not for 60 % of the run time on Pollux' first workload.
    """
    if job.scatter:
        return list(sizes)
    node = max(topology.slots.values(), default=0) // job.slots_per_replica
    half = node // 2 or 1
    return [size for size in sizes if size % half == 0 or (size < node and size.bit_count() == 1)]
