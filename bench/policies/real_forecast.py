"""The simulator's predictions for the workloads of real.py, from measured run times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from statistics import fmean

from real_jobs import Arrival
from real_runs import NODES, Result

from minicluster_hub.scheduling.base import JobView, Topology
from minicluster_hub.scheduling.placement import placement
from minicluster_hub.scheduling.policies import policy
from minicluster_hub.simulator.model import Model
from minicluster_hub.simulator.replay import SimulatedScheduler, simulate
from minicluster_hub.simulator.workload import Work


@dataclass(frozen=True)
class Measured:
    """A kind's speed by number of nodes with one slot each, relative to one node. alone_s: by nodes."""

    alone_s: Mapping[int, float]
    most_slots: None = None

    def rate(self, slots: int, nodes: int) -> float:
        return self.alone_s[1] / self.alone_s[slots]


def forecast(
    arrivals: Sequence[Arrival],
    alone_s: Mapping[str, Mapping[int, float]],
    scheduler: tuple[str, str],
    model: Model,
) -> Result:
    """Simulate a workload under a policy and a placement, with the jobs' ranges as the service sees them."""
    topology = Topology({f"node-{number}": 1 for number in range(NODES)})
    works = [_work(number, arrival, alone_s, model) for number, arrival in enumerate(arrivals, 1)]
    chosen = SimulatedScheduler(topology, policy(scheduler[0]), placement(scheduler[1]), model)
    outcomes = simulate(works, chosen).outcomes
    return Result(
        max(job.ended_at for job in outcomes),
        fmean(job.completion_s for job in outcomes),
        fmean(job.restarts for job in outcomes),
    )


def _work(number: int, arrival: Arrival, alone_s: Mapping[str, Mapping[int, float]], model: Model) -> Work:
    speeds = Measured(alone_s[arrival.kind.name])
    view = JobView(
        job_id=number,
        owner="admin",
        submitted_at=arrival.at_s,
        min_replicas=1,
        max_replicas=NODES,
        since=arrival.at_s,
        remaining_s=speeds.alone_s[1],
        not_preemptible_until=-inf,
        restart_cost_s=model.restart_s,
    )
    return Work(view, 1, speeds.alone_s[1], speeds, speeds.rate(1, 1))
