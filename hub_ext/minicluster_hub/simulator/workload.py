"""The jobs of a simulation, in a trace's form and in the simulator's."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import inf

from minicluster_hub.scheduling.base import NORMAL_PRIORITY, JobView, Topology
from minicluster_hub.simulator.model import Model, Speeds, power_law

GRADIENT_BYTES = 102_228_128
"""ResNet50's in float32: assumed if a trace names no model."""

STEP_S = 2.6
"""Assumed duration of a step on the requested slots if a trace has none. With the gradients above and a link
of 1 Gbit/s between two nodes, a job then has 3/4 of its speed on one node, as the model assumes."""


@dataclass(frozen=True, slots=True)
class TracedJob:
    """A job of a trace: it ran on `slots` slots for `duration_s`.

    speeds: measured ones, relative to the speed on `slots`; None: the model's.
    elastic_speeds: the same if the job adapts its batch size to its slots.
    """

    job_id: int
    owner: str
    submitted_at: float
    duration_s: float
    slots: int
    time_limit_s: float | None = None
    priority: int = NORMAL_PRIORITY
    group: str = ""
    step_s: float = STEP_S
    gradient_bytes: int = GRADIENT_BYTES
    speeds: Speeds | None = None
    elastic_speeds: Speeds | None = None


@dataclass(frozen=True, slots=True)
class Work:
    """The work of a simulated job.

    view: the policies' view of the job at its arrival.
    asked_slots: the requested slots.
    left_s: work that is left at `view.since`, in seconds at the rate 1 of `speeds`.
    least_rate: rate on its fewest replicas, on as few nodes as possible.
    steps_s: steps per second at the rate 1.
    """

    view: JobView
    asked_slots: float
    left_s: float
    speeds: Speeds
    least_rate: float
    steps_s: float = 1 / STEP_S


@dataclass(frozen=True, slots=True)
class Shape:
    """The simulated cluster: how many nodes, and how many slots on each."""

    nodes: int
    slots_per_node: int

    @property
    def slots(self) -> int:
        return self.nodes * self.slots_per_node

    def by_node(self) -> dict[str, int]:
        """Return the number of slots by node name; names sort like numbers."""
        width = len(str(self.nodes))
        return {f"node-{number:0{width}}": self.slots_per_node for number in range(1, self.nodes + 1)}

    def fewest_nodes(self, slots: int) -> int:
        return -(-slots // self.slots_per_node)


def workload(jobs: Iterable[TracedJob], shape: Shape, model: Model, *, elastic: bool) -> list[Work]:
    """Return the jobs that this cluster can run, in the order of their arrival."""
    fitting = [job for job in jobs if job.slots <= shape.slots]
    fitting.sort(key=lambda job: (job.submitted_at, job.job_id))
    return [_work(job, shape, model, elastic=elastic) for job in fitting]


def _work(job: TracedJob, shape: Shape, model: Model, *, elastic: bool) -> Work:
    speeds = _speeds(job, shape, model, elastic=elastic)
    least, most = _range(job, speeds, shape, model) if elastic else (job.slots, job.slots)
    least_rate = speeds.rate(least, shape.fewest_nodes(least))
    view = JobView(
        job_id=job.job_id,
        owner=job.owner,
        submitted_at=job.submitted_at,
        min_replicas=least,
        max_replicas=most,
        one_replica_per_node=False,
        group=job.group,
        priority=job.priority,
        since=job.submitted_at,
        remaining_s=job.duration_s / least_rate,
        time_limit_s=job.time_limit_s,
        not_preemptible_until=-inf,
        restart_cost_s=model.restart_s,
        gradient_bytes=job.gradient_bytes,
    )
    return Work(view, job.slots, job.duration_s, speeds, least_rate, 1 / job.step_s)


def _speeds(job: TracedJob, shape: Shape, model: Model, *, elastic: bool) -> Speeds:
    adapted = job.elastic_speeds if elastic and model.adapts else None
    return adapted or job.speeds or power_law(job.slots, shape.fewest_nodes(job.slots), model)


def _range(job: TracedJob, speeds: Speeds, shape: Shape, model: Model) -> tuple[int, int]:
    """Return the fewest and the most slots of an elastic job."""
    if speeds.most_slots is not None:
        return 1, max(1, min(shape.slots, speeds.most_slots))
    least = max(1, round(job.slots * model.least_share))
    return least, max(least, min(shape.slots, round(job.slots * model.most_times)))


def real_work(view: JobView, replicas: int, left_s: float, topology: Topology, model: Model) -> Work:
    """Return the work of a job of the service. left_s: its remaining seconds on `replicas` replicas."""
    speeds = power_law(replicas * view.slots_per_replica, _fewest_nodes(view, replicas, topology), model)
    least = view.min_replicas
    least_rate = speeds.rate(least * view.slots_per_replica, _fewest_nodes(view, least, topology))
    return Work(view, replicas * view.slots_per_replica, left_s, speeds, least_rate)


def _fewest_nodes(view: JobView, replicas: int, topology: Topology) -> int:
    if view.one_replica_per_node:
        return replicas
    most = int(max(topology.slots.values(), default=1) // view.slots_per_replica)
    return -(-replicas // max(1, most))
