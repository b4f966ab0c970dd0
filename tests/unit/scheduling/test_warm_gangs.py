"""Warm gangs count as free slots: under any policy and placement, a waiting job gets them at once."""

from dataclasses import replace

import pytest
from hypothesis import given, settings

from minicluster_hub.jobs.slot_numbers import in_halves
from minicluster_hub.scheduling.allocation.prepared import prepared_places
from minicluster_hub.scheduling.base import WarmGang
from minicluster_hub.scheduling.placement import PLACEMENTS, placement
from minicluster_hub.scheduling.policies import POLICIES, policy
from minicluster_hub.scheduling.scheduler import Admit, Extend, Reclaim, Reuse, Trim, schedule

from .small_lab import NOW, runs, snapshot, waits
from .snapshots_drawn import snapshots

EVERY = pytest.mark.parametrize(
    ("rule", "place"), [(rule, place) for rule in POLICIES for place in PLACEMENTS]
)


def warm(number, node, slots, owner="bob"):
    return WarmGang(number, owner, ((node, tuple(range(slots))),), slots, idle_since=NOW - 1.0)


def decided(rule, place, here):
    return schedule(here, policy(rule), placement(place)).decisions


@EVERY
def test_a_stranger_gets_the_slots_of_a_gang_that_ended_a_second_ago(rule, place):
    """Two nodes have a warm gang each, the third node is busy."""
    gangs = (warm(7, "node-2", 4), warm(8, "node-3", 4))
    here = snapshot(runs(1, 4, movable=False, owner="cid"), waits(2, 8), warm=gangs)
    assert decided(rule, place, here) == (Reclaim(7), Reclaim(8))


@EVERY
def test_one_that_fits_beside_a_warm_gang_starts_beside_it_and_leaves_it_warm(rule, place):
    here = snapshot(waits(2, 4), nodes={"node-1": 4, "node-2": 4}, warm=(warm(7, "node-2", 4),))
    (admitted,) = decided(rule, place, here)
    assert isinstance(admitted, Admit) and admitted.places == (("node-1", (0, 1, 2, 3)),)


@pytest.mark.parametrize("rule", POLICIES)
@settings(max_examples=30, deadline=None)
@given(here=snapshots())
def test_no_warm_gang_keeps_a_job_waiting_that_was_given_its_slots(rule, here):
    """A job takes over its assigned slots, or warm gangs on them are ended."""
    here = replace(
        here, jobs=here.waiting, releasing=type(here.releasing)({node: () for node in here.free.names})
    )
    found = schedule(here, policy(rule), placement("pack"))
    ended = {one.gang_id for one in found.decisions if isinstance(one, Reclaim)}
    begun = {one.job_id for one in found.decisions if isinstance(one, Admit | Reuse | Extend)}
    trimmed = {one.gang_id for one in found.decisions if isinstance(one, Trim)}
    for job_id, places in found.assignment.places.items():
        held = [gang for gang in here.warm if _meet(gang.places, places)]
        mine = found.assignment.warm.get(job_id)
        others = {gang.gang_id for gang in held if gang != mine}
        assert job_id in begun or others <= ended or (mine is not None and mine.gang_id in trimmed)
        assert job_id in begun or others or (mine is not None and mine.gang_id in trimmed)


def _meet(one, other):
    theirs = {(node, half) for node, slots in other for half in in_halves(slots)}
    return any((node, half) in theirs for node, slots in one for half in in_halves(slots))


def test_a_gang_is_prepared_on_a_free_slot_of_each_node():
    here = snapshot(runs(1, 5, owner="cid"))
    assert prepared_places(here, "ada", ()) == (("node-2", (1,)), ("node-3", (0,)))
    assert prepared_places(here, "ada", {("node-2", 1), *(("node-3", slot) for slot in range(4))}) == (
        ("node-2", (2,)),
    )


def test_no_gang_is_prepared_while_a_job_waits_nor_in_place_of_another_gang():
    assert prepared_places(snapshot(waits(1, 12)), "ada", ()) == ()
    bobs = (warm(7, "node-2", 4), warm(8, "node-3", 1))
    assert prepared_places(snapshot(warm=bobs), "ada", ()) == (("node-1", (0,)), ("node-3", (1,)))
    assert prepared_places(snapshot(warm=bobs), "bob", ()) == ()
