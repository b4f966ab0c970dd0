"""Replicas of served models go before batch jobs, whatever the policy."""

import pytest

from minicluster_hub.scheduling.base import SERVING_PRIORITY, WarmGang
from minicluster_hub.scheduling.placement.pack import Pack
from minicluster_hub.scheduling.planning.serving_first import plan_with_replicas
from minicluster_hub.scheduling.policies import POLICIES, policy
from minicluster_hub.scheduling.reasons import explain
from minicluster_hub.scheduling.scheduler import Admit, Resize, schedule

from .small_lab import NOW, runs, snapshot, waits

ALL = sorted(POLICIES)
ONE_NODE = {"node-1": 4}


def replica(job_id, slots=1, **more):
    return waits(
        job_id,
        1,
        slots_per_replica=slots,
        one_replica_per_node=True,
        priority=SERVING_PRIORITY,
        **{"model_id": 1, **more},
    )


def decided(name, *jobs, **more):
    return schedule(snapshot(*jobs, **more), policy(name), Pack()).decisions


def started(decisions):
    return [one.job_id for one in decisions if isinstance(one, Admit)]


@pytest.mark.parametrize("name", ALL)
def test_a_replica_starts_before_jobs_that_have_waited_longer(name):
    jobs = [waits(number, since=NOW - 1000.0 + number) for number in range(1, 6)]
    found = started(decided(name, *jobs, replica(9, since=NOW - 1.0), nodes=ONE_NODE))
    assert 9 in found
    assert len(found) == 4, "the other slots are for batch jobs"


@pytest.mark.parametrize("name", ALL)
def test_a_replica_takes_slots_of_jobs_only_where_the_policy_preempts(name):
    jobs = [runs(number, 1) for number in range(1, 5)]
    decisions = decided(name, *jobs, replica(9), nodes=ONE_NODE)
    lost = [one.job_id for one in decisions if isinstance(one, Resize) and not one.places]
    assert len(lost) == (1 if policy(name).preemptive else 0)
    assert not started(decisions), "its slots are still held"


def test_who_waits_for_slots_of_models_is_told_that_they_do_not_end():
    jobs = [runs(1, 1), runs(2, 1, priority=SERVING_PRIORITY, model_id=1), waits(3, 3)]
    (wait,) = explain(snapshot(*jobs, nodes=ONE_NODE))
    assert wait.reason == "needs 3 free slots; 2 are free until job 1 ends; job 2 serves a model, without end"


@pytest.mark.parametrize("name", ALL)
def test_a_replica_preempts_no_job_that_cannot_be_stopped(name):
    # The younger job would lose its slots first.
    jobs = [runs(1, 2), runs(2, 2, since=NOW - 500.0, only_shrinks=True)]
    decisions = decided(name, *jobs, replica(9), nodes=ONE_NODE)
    lost = [one.job_id for one in decisions if isinstance(one, Resize) and not one.places]
    assert lost == ([1] if policy(name).preemptive else [])


@pytest.mark.parametrize("name", ALL)
def test_a_running_replica_is_not_preempted(name):
    serving = runs(1, 1, movable=False, priority=SERVING_PRIORITY, model_id=1)
    decisions = decided(name, serving, waits(2, 4, priority=99), nodes=ONE_NODE)
    assert not [one for one in decisions if isinstance(one, Resize) and one.job_id == 1]


@pytest.mark.parametrize("name", ALL)
def test_what_gets_free_is_kept_for_a_large_replica(name):
    jobs = [runs(1, 2, movable=False), waits(2), waits(3)]
    assert started(decided(name, *jobs, replica(9, slots=4), nodes=ONE_NODE)) == []


def test_a_replica_is_started_on_no_warm_gang():
    warm = WarmGang(5, "ada", (("node-1", (0,)),), 1, NOW - 10.0)
    decisions = decided("fifo", replica(9), nodes={"node-1": 1}, warm=(warm,))
    assert [type(one).__name__ for one in decisions] == ["Reclaim"]


@pytest.mark.parametrize("name", ALL)
def test_jobs_are_planned_as_before_where_no_replica_waits(name):
    jobs = [runs(1, 2), waits(2), waits(3, 4)]
    here = snapshot(*jobs, nodes=ONE_NODE)
    assert plan_with_replicas(policy(name), here) == policy(name).plan(here)


@pytest.mark.parametrize("name", ALL)
def test_replicas_of_a_model_are_on_different_nodes_where_they_can_be(name):
    nodes = {"node-1": 4, "node-2": 4, "node-3": 4}
    decisions = decided(name, replica(1), replica(2), replica(3), replica(4, model_id=2), nodes=nodes)
    places = {one.job_id: one.places[0][0] for one in decisions if isinstance(one, Admit)}
    assert {places[1], places[2], places[3]} == set(nodes)
    more = decided(name, *(replica(number) for number in range(1, 5)), nodes={"node-1": 2, "node-2": 2})
    found = [one.places[0][0] for one in more if isinstance(one, Admit)]
    assert sorted(found) == ["node-1", "node-1", "node-2", "node-2"]
