"""What other policies would have done with the jobs that really were, by the simulator.

It assumes that the cluster was empty when the first of them came, and its model of what a job has from more
slots, or loses by a restart.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import inf

from minicluster_hub.scheduling.base import NORMAL_PRIORITY, JobView, Topology
from minicluster_hub.scheduling.allocation.free_slots import FreeSlots
from minicluster_hub.simulator.course import Outcome
from minicluster_hub.simulator.metrics import Metrics, measure
from minicluster_hub.simulator.model import Model
from minicluster_hub.simulator.work import Work, real_work
from minicluster_hub.simulator.replay import Rules, simulate


@dataclass(frozen=True, slots=True)
class PastJob:
    """A job that has run. `chunks`: that it ran on, for `ran_s` in all; it asked for `least` to `most`."""

    job_id: int
    owner: str
    submitted_at: float
    started_at: float
    ended_at: float
    ran_s: float
    chunks: int
    least: int
    most: int
    chunk_slots: int = 1
    scatter: bool = True
    group: str = ""
    priority: int = NORMAL_PRIORITY
    time_limit_s: float | None = None
    gradient_bytes: int = 0


def comparable(history: Iterable[PastJob], topology: Topology) -> list[PastJob]:
    """Return the jobs that ran at all and that this cluster can run, in the order of their arrival."""
    room = FreeSlots({node: range(count) for node, count in topology.slots.items()})
    fitting = [
        job
        for job in history
        if job.ran_s > 0 and job.least <= room.most_chunks(job.chunk_slots, scatter=job.scatter)
    ]
    return sorted(fitting, key=lambda job: (job.submitted_at, job.job_id))


def really(jobs: Sequence[PastJob], topology: Topology) -> Metrics:
    """Return the figures of what really was, of at least one job; of the network nothing is known."""
    return measure([_outcome(job) for job in jobs], sum(topology.slots.values()))


def shadow(jobs: Sequence[PastJob], rules: Rules) -> Metrics:
    """Return those of the same jobs, comparable ones, under other rules. Raises SimulationStuck."""
    replay = simulate([_past_work(job, rules) for job in jobs], rules)
    return measure(replay.outcomes, sum(rules.topology.slots.values()))


def assumed(model: Model) -> Iterator[str]:
    """Yield what all this supposes, in words."""
    yield "the cluster was empty when the first of these jobs came, and had the nodes that are up now"
    yield f"every job can be moved, at the cost of {model.restart_s:g} s"
    yield f"a job that got slots keeps them for {model.min_run_s:g} s at least"
    yield f"k slots are k^{model.exponent:g} times as fast as one"
    yield f"a job on several nodes has {model.cross_node_efficiency:g} of the speed of one on one node"
    yield "how much is left of a job is known exactly once it has started; time limits end nobody"
    yield "notebook servers, and jobs that are not over yet, held nothing; quotas held back nobody"


def _past_work(job: PastJob, rules: Rules) -> Work:
    view = JobView(
        job_id=job.job_id,
        owner=job.owner,
        submitted_at=job.submitted_at,
        min_chunks=job.least,
        max_chunks=job.most,
        chunk_slots=job.chunk_slots,
        scatter=job.scatter,
        group=job.group,
        priority=job.priority,
        since=job.submitted_at,
        time_limit_s=job.time_limit_s,
        steady_until=-inf,
        gradient_bytes=job.gradient_bytes,
        move_s=rules.model.restart_s,
    )
    return real_work(view, job.chunks, job.ran_s, rules.topology, rules.model)


def _outcome(job: PastJob) -> Outcome:
    slots = job.chunks * job.chunk_slots
    crossed_s = job.ran_s if job.scatter and job.chunks > 1 else 0.0
    return Outcome(
        job_id=job.job_id,
        owner=job.owner,
        slots=slots,
        submitted_at=job.submitted_at,
        started_at=job.started_at,
        ended_at=job.ended_at,
        alone_s=job.ran_s,
        held_s=job.ran_s,
        crossed_s=crossed_s,
        needless_s=0.0,
        slot_s=job.ran_s * slots,
        longest_wait_s=job.started_at - job.submitted_at,
        restarts=0,
        network_bytes=0.0,
    )
