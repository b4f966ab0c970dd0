"""The same jobs under several policies and placements, side by side."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from minicluster_hub.scheduling.base import Policy, Topology
from minicluster_hub.scheduling.placement import placement
from minicluster_hub.scheduling.policies import policy
from minicluster_hub.simulator.course import Outcome
from minicluster_hub.simulator.metrics import Metrics, Spread, measure, over_runs
from minicluster_hub.simulator.model import Model
from minicluster_hub.simulator.replay import Replay, SimulatedScheduler, simulate
from minicluster_hub.simulator.work import Shape, TracedJob, works


@dataclass(frozen=True, slots=True)
class Setting:
    """The cluster and the assumptions that all are compared on. `own`: policies that are not built in."""

    shape: Shape
    model: Model = field(default_factory=Model)
    own: Mapping[str, Policy] = field(default_factory=dict)

    def topology(self) -> Topology:
        return Topology(self.shape.by_node())


@dataclass(frozen=True, slots=True)
class Row:
    """One policy with one placement. `runs`: figures of each trace; `outcomes`: of the first one's jobs."""

    policy: str
    placement: str
    runs: tuple[Metrics, ...]
    outcomes: tuple[Outcome, ...]

    def figures(self) -> Mapping[str, Spread]:
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
    """Replay a trace's jobs that fit on the cluster."""
    chosen = setting.own[policy_name] if policy_name in setting.own else policy(policy_name)
    return replay_under(jobs, chosen, placement_name, setting)


def replay_under(jobs: Iterable[TracedJob], chosen: Policy, placement_name: str, setting: Setting) -> Replay:
    """The same under a policy that is not in the table, or has other parameters."""
    offered = works(jobs, setting.shape, setting.model, elastic=chosen.elastic)
    return simulate(
        offered, SimulatedScheduler(setting.topology(), chosen, placement(placement_name), setting.model)
    )


def too_large(jobs: Iterable[TracedJob], shape: Shape) -> int:
    """Return how many jobs the cluster cannot run at all: they are left out."""
    return sum(job.slots > shape.slots for job in jobs)
