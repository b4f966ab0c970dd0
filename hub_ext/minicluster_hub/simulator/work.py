"""The jobs of a simulation: what a trace tells of one, and what the simulator makes of that."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import inf

from minicluster_hub.scheduling.base import NORMAL_PRIORITY, JobView, Topology
from minicluster_hub.simulator.model import Model, Speeds, power_law

GRADIENT_BYTES = 102_228_128
"""Of a ResNet50 in float32: what is assumed where a trace names no model."""

STEP_S = 2.6
"""Of a step on the slots that were asked for, where a trace does not tell: with the gradients above and a
link of 1 Gbit/s between two nodes, three quarters of the speed are left, as the model has it."""


@dataclass(frozen=True, slots=True)
class TracedJob:
    """A job as it was seen once, on `slots` slots for `duration_s`.

    speeds: measured, relative to that on `slots`; None: the model's.
    elastic_speeds: the same of a job that adapts itself to the slots that it gets, as in its batch size.
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
    """A job in the simulator.

    view: what the policies see of it, as it comes in.
    asked_slots: that it would have without a scheduler's doing.
    left_s: what is left to do, in seconds at the rate 1 of `speeds`, at `view.since`.
    least_rate: on its fewest chunks, on as few nodes as can be.
    steps_s: steps that it does in a second at the rate 1.
    """

    view: JobView
    asked_slots: int
    left_s: float
    speeds: Speeds
    least_rate: float
    steps_s: float = 1 / STEP_S


@dataclass(frozen=True, slots=True)
class Shape:
    """The simulated cluster: how many nodes with how many slots each."""

    nodes: int
    slots_per_node: int

    @property
    def slots(self) -> int:
        return self.nodes * self.slots_per_node

    def by_node(self) -> dict[str, int]:
        """Return the slots of each node; names sort like numbers."""
        width = len(str(self.nodes))
        return {f"node-{number:0{width}}": self.slots_per_node for number in range(1, self.nodes + 1)}

    def fewest_nodes(self, slots: int) -> int:
        return -(-slots // self.slots_per_node)


def works(jobs: Iterable[TracedJob], shape: Shape, model: Model, *, elastic: bool) -> list[Work]:
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
        min_chunks=least,
        max_chunks=most,
        scatter=False,
        group=job.group,
        priority=job.priority,
        since=job.submitted_at,
        remaining_s=job.duration_s / least_rate,
        time_limit_s=job.time_limit_s,
        steady_until=-inf,
        move_s=model.restart_s,
        gradient_bytes=job.gradient_bytes,
    )
    return Work(view, job.slots, job.duration_s, speeds, least_rate, 1 / job.step_s)


def _speeds(job: TracedJob, shape: Shape, model: Model, *, elastic: bool) -> Speeds:
    adapted = job.elastic_speeds if elastic and model.adapts else None
    return adapted or job.speeds or power_law(job.slots, shape.fewest_nodes(job.slots), model)


def _range(job: TracedJob, speeds: Speeds, shape: Shape, model: Model) -> tuple[int, int]:
    """Return the fewest and the most slots; a measured profile tells how many are of use."""
    if speeds.most_slots is not None:
        return 1, max(1, min(shape.slots, speeds.most_slots))
    least = max(1, round(job.slots * model.least_share))
    return least, max(least, min(shape.slots, round(job.slots * model.most_times)))


def real_work(view: JobView, chunks: int, left_s: float, topology: Topology, model: Model) -> Work:
    """Return a job as the service has it, with what is left to do in seconds on so many chunks."""
    speeds = power_law(chunks * view.chunk_slots, _fewest_nodes(view, chunks, topology), model)
    least = view.min_chunks
    least_rate = speeds.rate(least * view.chunk_slots, _fewest_nodes(view, least, topology))
    return Work(view, chunks * view.chunk_slots, left_s, speeds, least_rate)


def _fewest_nodes(view: JobView, chunks: int, topology: Topology) -> int:
    if view.scatter:
        return chunks
    most = max(topology.slots.values(), default=1) // view.chunk_slots
    return -(-chunks // max(1, most))
