"""Closed simulations: with every policy and placement, every job gets its slots and ends."""

from dataclasses import replace
from itertools import product
from random import Random

import pytest

from minicluster_hub.scheduling.base import JobView, Topology
from minicluster_hub.scheduling.placement import PLACEMENTS, placement
from minicluster_hub.scheduling.policies import POLICIES, policy
from minicluster_hub.simulator.model import Model, power_law
from minicluster_hub.simulator.replay import SimulatedScheduler, simulate
from minicluster_hub.simulator.workload import Work

LAB = Topology({"a": 4, "b": 4, "c": 4})
MODEL = Model(min_run_s=120.0)
SHAPES = (
    (1, 1, False),
    (1, 1, False),
    (2, 1, False),
    (4, 1, False),
    (12, 1, False),
    (1, 2, False),
    (1, 4, False),
    (2, 1, True),
    (3, 1, True),
    (3, 4, True),
    (2, 3, True),
)
"""Replicas, slots per replica, and whether each needs its own node; two shapes need the whole lab."""


def works(seed, *, elastic, count=25):
    """Return jobs that arrive faster than they end; some have no known duration."""
    chance, at, drawn = Random(seed), 0.0, []
    for number in range(1, count + 1):
        at += chance.expovariate(1 / 60)
        drawn.append(_work(number, at, chance, elastic=elastic))
    return drawn


def _work(number, at, chance, *, elastic):
    replicas, slots_per_replica, one_replica_per_node = chance.choice(SHAPES)
    seconds, most = (
        chance.uniform(30, 3000),
        replicas + (chance.choice((0, 1)) if elastic and replicas < 3 else 0),
    )
    view = JobView(
        number,
        chance.choice(("ada", "bob", "cid")),
        at,
        replicas,
        most,
        slots_per_replica=slots_per_replica,
        one_replica_per_node=one_replica_per_node,
        priority=chance.choice((50, 50, 20, 80)),
        since=at,
        remaining_s=seconds,
        time_limit_s=chance.choice((None, 3 * seconds)),
        not_preemptible_until=float("-inf"),
    )
    speeds = power_law(replicas * slots_per_replica, 1, MODEL)
    return Work(
        view, replicas * slots_per_replica, seconds, speeds, speeds.rate(replicas * slots_per_replica, 1)
    )


@pytest.mark.parametrize("name", POLICIES)
def test_every_job_ends(name):
    for placed, seed in product(PLACEMENTS, range(2)):
        offered = works(seed, elastic=policy(name).elastic)
        outcomes = simulate(offered, SimulatedScheduler(LAB, policy(name), placement(placed), MODEL)).outcomes
        assert {one.job_id for one in outcomes} == {work.view.job_id for work in offered}


@pytest.mark.parametrize("name", POLICIES)
def test_jobs_of_which_nothing_is_known_end_too(name):
    offered = [replace(work, view=_unknown(work.view)) for work in works(7, elastic=policy(name).elastic)]
    for placed in PLACEMENTS:
        outcomes = simulate(offered, SimulatedScheduler(LAB, policy(name), placement(placed), MODEL)).outcomes
        assert len(outcomes) == len(offered)


def _unknown(view):
    return replace(view, remaining_s=None, time_limit_s=None)
