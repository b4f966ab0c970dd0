"""Every policy with every placement on random snapshots: properties of all assignments."""

from dataclasses import replace
from itertools import product

from hypothesis import given, note, settings

from minicluster_hub.jobs.slot_numbers import in_halves, total
from minicluster_hub.scheduling.allocation.assign import assign
from minicluster_hub.scheduling.allocation.free_slots import FreeSlots, count_slots
from minicluster_hub.scheduling.placement import PLACEMENTS, placement
from minicluster_hub.scheduling.policies import POLICIES, policy

from .snapshots_drawn import snapshots


def taken(places):
    return {(node, half) for node, slots in places for half in in_halves(slots)}


def rebuilt(snapshot):
    """Return an equal snapshot, all parts of which were built differently."""
    free, releasing = (
        {node: held.numbers(node) for node in held.names} for held in (snapshot.free, snapshot.releasing)
    )
    return replace(snapshot, free=FreeSlots(free), releasing=FreeSlots(releasing))


def check_places(snapshot, assignment):
    """Check that no slot is given twice or held by others, and that every gang is complete."""
    used = [half for places in assignment.places.values() for half in taken(places)]
    assert len(used) == len(set(used))
    up = set(snapshot.topology.slots)
    stays = {
        job.job_id
        for job in snapshot.running
        if not job.is_preemptible(snapshot.now) or not set(dict(job.places)) <= up
    }
    free = taken(snapshot.free.all()) | taken(snapshot.releasing.all())
    for job in snapshot.running:
        free |= set() if job.job_id in stays else taken(job.places)
    for job in snapshot.jobs:
        places = assignment.places.get(job.job_id, ())
        own = taken(job.places) if job.job_id in stays else set()
        assert taken(places) <= free | own
        if places:
            replicas = count_slots(places) // job.slots_per_replica
            assert job.min_replicas <= replicas <= job.max_replicas
            assert all(total(slots) % job.slots_per_replica == 0 for _, slots in places)
            assert not job.one_replica_per_node or {total(slots) for _, slots in places} == {
                job.slots_per_replica
            }
            assert len(dict(places)) == len(places)
    return stays


def check_running(snapshot, assignment, stays, moves):
    """Check that unmovable jobs stay, and that jobs lose slots only to other jobs."""
    for job in snapshot.running:
        places = assignment.places.get(job.job_id, ())
        if job.job_id in stays or not moves:
            grew = job.job_id in snapshot.growing and set(job.places) <= set(places)
            assert places == job.places or grew
        elif not places:
            others = [theirs for number, theirs in assignment.places.items() if number != job.job_id]
            assert any(taken(theirs) & taken(job.places) for theirs in others)


def check_warm(snapshot, assignment):
    """Check that a warm gang is taken over as a whole, by one job of its owner."""
    assert len({gang.gang_id for gang in assignment.warm.values()}) == len(assignment.warm)
    for job in snapshot.jobs:
        gang = assignment.warm.get(job.job_id)
        if gang is not None:
            assert gang.suits(job) and assignment.places[job.job_id][: len(gang.places)] == gang.places


@settings(deadline=None, max_examples=60)
@given(snapshot=snapshots())
def test_every_policy_with_every_placement(snapshot):
    for ordered, placed in product(POLICIES, PLACEMENTS):
        note(f"{ordered} with {placed}")
        check(snapshot, policy(ordered), placement(placed))


def check(snapshot, policy, placement):
    free, releasing = snapshot.free.all(), snapshot.releasing.all()
    assignment = assign(snapshot, policy, placement)
    stays = check_places(snapshot, assignment)
    check_running(snapshot, assignment, stays, policy.preemptive)
    check_warm(snapshot, assignment)
    assert assignment.again_at is None or assignment.again_at > snapshot.now
    again = assign(rebuilt(snapshot), policy, placement)
    assert again == assignment and list(again.places) == list(assignment.places)
    assert (snapshot.free.all(), snapshot.releasing.all()) == (free, releasing), "it changes nothing"
