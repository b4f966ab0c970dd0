"""Every policy on random snapshots: properties of all plans."""

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings

from minicluster_hub.scheduling.planning.moments import movable
from minicluster_hub.scheduling.policies import POLICIES, policy

from ..scheduling.snapshots_drawn import snapshots


@pytest.mark.parametrize("name", POLICIES)
@settings(max_examples=100, deadline=None)
@given(here=snapshots())
def test_a_plan_can_be_carried_out(name, here):
    plan = policy(name).plan(here)
    replicas = {grant.job_id: grant.replicas for grant in plan.grants}
    jobs = {job.job_id: job for job in here.jobs}
    assert len(replicas) == len(plan.grants), "nobody is there twice"
    stay = {job.job_id for job in here.running} - {job.job_id for job in movable(here)}
    for job_id, count in replicas.items():
        job = jobs[job_id]
        if job_id in stay or (job.runs and not policy(name).elastic):
            assert count == job.replicas
        else:
            assert job.min_replicas <= count <= job.max_replicas
    assert stay <= set(replicas)
    if not policy(name).preemptive:
        assert {job.job_id for job in here.running} <= set(replicas)
    _fits(here, {jobs[job_id]: count for job_id, count in replicas.items() if job_id not in stay})
    assert plan.again_at is None or plan.again_at > here.now


def _fits(here, replicas):
    """Check that the plan needs at most all slots, and that each job fits alone on obtainable slots."""
    room = here.obtainable()
    for job in movable(here):
        room.add(job.places)
    assert sum(count * job.slots_per_replica for job, count in replicas.items()) <= room.count
    for job, count in replicas.items():
        assert count <= room.replicas_that_fit(
            job.slots_per_replica, one_replica_per_node=job.one_replica_per_node
        )


@pytest.mark.parametrize("name", POLICIES)
@settings(max_examples=40, deadline=None)
@given(here=snapshots())
def test_the_same_snapshot_gives_the_same_plan_in_whatever_order_it_is_told(name, here):
    before = (here.free.all(), here.releasing.all())
    plan = policy(name).plan(here)
    assert (here.free.all(), here.releasing.all()) == before, "it was asked, not told to change anything"
    told_backwards = replace(here, jobs=here.jobs[::-1])
    again = policy(name).plan(told_backwards)
    assert Counter(again.grants) == Counter(plan.grants)
    assert again.again_at == plan.again_at


@pytest.mark.parametrize("name", POLICIES)
@settings(max_examples=40, deadline=None)
@given(here=snapshots())
def test_an_empty_cluster_is_never_left_empty(name, here):
    """The first job in the order fits, or can never fit."""
    alone = replace(here, jobs=here.waiting)
    room = alone.obtainable()
    could = [
        job
        for job in alone.jobs
        if room.replicas_that_fit(job.slots_per_replica, one_replica_per_node=job.one_replica_per_node)
        >= job.min_replicas
    ]
    if len(could) == len(alone.jobs):
        assert bool(policy(name).plan(alone).grants) == bool(could)
