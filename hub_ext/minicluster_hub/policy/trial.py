"""Whether a policy can be put in force: it plans what there is now, a lab's own drawn jobs as well."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace

from minicluster_hub.policy.custom_policy import CustomPolicy
from minicluster_hub.scheduling.allocation.free_slots import FreeSlots
from minicluster_hub.scheduling.base import Placement, Policy, Snapshot, Topology
from minicluster_hub.scheduling.own import PolicyFailed
from minicluster_hub.scheduling.scheduler import schedule
from minicluster_hub.simulator.model import Model
from minicluster_hub.simulator.replay import SimulatedScheduler, Simulation, SimulationStuck, Start
from minicluster_hub.simulator.traces.synthetic import Lab, draw
from minicluster_hub.simulator.work import Shape, Work, works

JOBS = 200
MOST_DECISIONS = 1000
MOST_S = 5.0
"""Of the trial; each decision has its own limit, too."""
_SHAPE = Shape(3, 4)
_LAB = Lab(jobs=JOBS, slots=_SHAPE.slots, load=0.8, longest_s=4 * 3600.0)
_PATIENCE = 50


def try_out(policy: Policy, placement: Placement, snapshot: Snapshot) -> None:
    """Raises PolicyFailed, with the decision at which it failed."""
    if isinstance(policy, CustomPolicy):
        policy.load()
    try:
        schedule(snapshot, policy, placement)
    except Exception as error:
        raise PolicyFailed(f"planning the jobs of this moment: {in_words(error)}") from error
    if isinstance(policy, CustomPolicy):
        _play(policy, placement)


def in_words(error: Exception) -> str:
    return str(error) if isinstance(error, PolicyFailed) else f"{type(error).__name__}: {error}"


def _play(policy: Policy, placement: Placement) -> None:
    topology, model = Topology(_SHAPE.by_node()), Model(min_run_s=60.0)
    free = FreeSlots({node: range(count) for node, count in topology.slots.items()})
    scheduler = SimulatedScheduler(topology, policy, placement, model, patience=_PATIENCE)
    drawn = list(_less_known(works(draw(_LAB, seed=0), _SHAPE, model, elastic=policy.elastic)))
    simulation = Simulation(scheduler, Start(free), drawn)
    until = time.monotonic() + MOST_S
    try:
        while simulation.advance() is not None:
            if simulation.decisions >= MOST_DECISIONS or time.monotonic() > until:
                return
    except SimulationStuck as stuck:
        raise PolicyFailed(f"in the simulator, {stuck}. Each job has to run in the end") from stuck
    except Exception as error:
        where = f"in the simulator, planning drawn jobs for the {simulation.decisions}. time"
        raise PolicyFailed(f"{where}: {in_words(error)}") from error


def _less_known(drawn: list[Work]) -> Iterator[Work]:
    """Yield the jobs as users send them: of many nobody knows the length, and some have no time limit."""
    for number, work in enumerate(drawn):
        view = replace(work.view, remaining_s=None)
        yield replace(work, view=replace(view, time_limit_s=None) if number % 3 == 0 else view)
