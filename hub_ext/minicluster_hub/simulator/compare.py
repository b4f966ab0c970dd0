"""Replays the same jobs under several policies and placements."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from minicluster_hub.scheduling.base import Policy, Topology
from minicluster_hub.scheduling.placement import placement
from minicluster_hub.scheduling.policies import policy
from minicluster_hub.simulator.metrics import MeanSpread, ReplayMetrics, measure, over_runs
from minicluster_hub.simulator.model import Model
from minicluster_hub.simulator.replay import Replay, SimulatedScheduler, simulate
from minicluster_hub.simulator.simulated_job import Outcome
from minicluster_hub.simulator.workload import Shape, TracedJob, workload


@dataclass(frozen=True, slots=True)
class Setting:
    """The cluster and the assumptions of a comparison. custom: policies that are not built in, by name."""

    shape: Shape
    model: Model = field(default_factory=Model)
    custom: Mapping[str, Policy] = field(default_factory=dict[str, Policy])

    def topology(self) -> Topology:
        return Topology(self.shape.by_node())


@dataclass(frozen=True, slots=True)
class Row:
    """One policy with one placement. runs: figures of each trace. outcomes: of the first trace's jobs."""

    policy: str
    placement: str
    runs: tuple[ReplayMetrics, ...]
    outcomes: tuple[Outcome, ...]

    def figures(self) -> Mapping[str, MeanSpread]:
        return over_runs(self.runs)


def compare(
    traces: Sequence[Sequence[TracedJob]],
    policies: Iterable[str],
    placements: Sequence[str],
    setting: Setting,
) -> Iterator[Row]:
    """Yield a row for each policy with each placement. Raises SimulationStuck."""
    for policy_name in policies:
        for placement_name in placements:
            replays = [replay(jobs, policy_name, placement_name, setting) for jobs in traces]
            runs = tuple(measure(one.outcomes, setting.shape.slots) for one in replays)
            yield Row(policy_name, placement_name, runs, replays[0].outcomes)


def replay(jobs: Iterable[TracedJob], policy_name: str, placement_name: str, setting: Setting) -> Replay:
    """Replay the jobs of a trace that fit on the cluster. Raises SimulationStuck."""
    custom = setting.custom.get(policy_name)
    return replay_under(jobs, custom or policy(policy_name), placement_name, setting)


def replay_under(jobs: Iterable[TracedJob], chosen: Policy, placement_name: str, setting: Setting) -> Replay:
    """Replay jobs under a policy with its own parameters. Raises SimulationStuck."""
    scheduler = SimulatedScheduler(setting.topology(), chosen, placement(placement_name), setting.model)
    return simulate(workload(jobs, setting.shape, setting.model, elastic=chosen.elastic), scheduler)


def too_large(jobs: Iterable[TracedJob], shape: Shape) -> int:
    """Return how many jobs need more slots than the cluster has; the replay leaves them out."""
    return sum(job.slots > shape.slots for job in jobs)
