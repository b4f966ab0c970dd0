"""From plans to slots: jobs that keep, lose, wait, move and grow, in small clusters."""

from dataclasses import dataclass, replace
from typing import ClassVar

import pytest

from minicluster_hub.scheduling.allocation.assign import assign
from minicluster_hub.scheduling.allocation.free_slots import FreeSlots, Places, count_slots
from minicluster_hub.scheduling.base import Grant, JobView, Plan, Snapshot, Topology, WarmGang
from minicluster_hub.scheduling.placement.locality import Locality
from minicluster_hub.scheduling.placement.pack import Pack
from minicluster_hub.scheduling.placement.spread import Spread

from ... import messages


def taken(places):
    return {(node, slot) for node, slots in places for slot in slots}


@dataclass(frozen=True)
class Given:
    """A policy that returns a given plan."""

    grants: tuple[tuple[int, int], ...]
    head_blocks: bool = False
    reserved: Places = ()
    preemptive: ClassVar[bool] = True
    elastic: ClassVar[bool] = True

    def plan(self, snapshot):
        grants = tuple(Grant(*grant) for grant in self.grants)
        return Plan(grants, head_blocks=self.head_blocks, reserved=self.reserved)


@dataclass(frozen=True)
class Fixed(Given):
    preemptive: ClassVar[bool] = False


def job(job_id, replicas=1, *places, most=None, **more):
    """`places`: ("a", 0, 1) for two slots of node a."""
    held = tuple((node, tuple(slots)) for node, *slots in places)
    given = {"one_replica_per_node": False, "not_preemptible_until": 0.0, **more}
    return JobView(job_id, "ada", float(job_id), replicas, most or replicas, places=held, **given)


def lab(*jobs, slots=4, nodes="abc", warm=(), now=1000.0, growing=()):
    free = FreeSlots({node: range(slots) for node in nodes})
    for one in jobs:
        free.remove(one.places)
    topology = Topology(dict.fromkeys(nodes, slots))
    return Snapshot(now, jobs, free, topology, tuple(warm), growing=frozenset(growing))


def places_of(snapshot, *grants, policy=Given, placed=None, **more):
    return assign(snapshot, policy(grants, **more), placed or Pack()).places


def test_who_is_left_out_keeps_what_nobody_got():
    here = lab(job(1, 2, ("a", 0, 1)), job(2, 2, ("b", 0, 1)), job(3, 1))
    assert places_of(here, (3, 1)) == {3: (("a", (2,)),), 1: (("a", (0, 1)),), 2: (("b", (0, 1)),)}


def test_as_few_as_possible_lose_their_slots_the_least_important_and_latest_first():
    held = [
        job(number, 4, (node, 0, 1, 2, 3), priority=priority)
        for number, node, priority in ((1, "a", 50), (2, "b", 50), (3, "c", 60))
    ]
    places = places_of(lab(*held, job(4, 4)), (4, 4))
    assert places == {4: (("b", (0, 1, 2, 3)),), 1: held[0].places, 3: held[2].places}


def test_slots_that_are_kept_for_one_are_left_to_it_where_others_fit_elsewhere():
    keeps = {"reserved": (("a", (0, 1, 2)), ("gone", (0,)))}
    here = lab(job(1, 1), job(2, 4), job(3, 3), nodes="ab")
    assert places_of(here, (1, 1), **keeps)[1] == (("a", (3,)),)
    assert places_of(here, (1, 1), placed=Spread(), **keeps)[1] == (("b", (0,)),), "most is free elsewhere"
    places = places_of(here, (1, 1), (2, 4), (3, 3), **keeps)
    assert places[3] == (("a", (0, 1, 2)),), "it fits nowhere else"
    growing = lab(job(1, 1, ("a", 3), most=4), nodes="a")
    assert places_of(growing, (1, 4), **keeps) == {1: growing.jobs[0].places}, "nobody grows onto them"


def test_who_waits_for_better_places_does_not_take_those_that_are_kept():
    here = lab(job(1, 3, ("a", 0, 1, 2)), job(2, 3, ("b", 0, 1, 2)), job(3, 2))
    grants, reserved = ((1, 3), (2, 3), (3, 2)), (("c", (0, 1, 2, 3)),)
    assert 3 not in places_of(here, *grants, placed=Locality(), reserved=reserved)
    assert places_of(here, *grants, reserved=reserved)[3] == (("a", (3,)), ("b", (3,)))


def test_what_is_left_of_a_victim_is_nearer_than_what_is_kept():
    pair, two = job(3, 1, slots_per_replica=2), job(4, 2)
    here = lab(job(1, 4, ("a", 0, 1, 2, 3)), job(2, 3, ("b", 1, 2, 3)), pair, two, nodes="ab")
    places = places_of(here, (2, 3), (3, 1), (4, 2), reserved=(("b", (0,)),))
    assert (places[3], places[4]) == ((("a", (0, 1)),), (("a", (2, 3)),))


def test_nobody_loses_slots_to_spare_those_that_are_kept():
    here = lab(job(1, 4, ("b", 0, 1, 2, 3)), job(2, 3, slots_per_replica=1), job(3, 1), nodes="ab")
    places = places_of(here, (2, 3), (3, 1), placed=Locality(), reserved=(("a", (0, 1)),))
    assert places[2] == (("a", (0, 1, 2)),), "nobody loses slots while some are free"
    assert places[1] == here.jobs[0].places


def test_a_warm_gang_gives_way_before_a_job_does():
    warm = WarmGang(7, "bob", (("c", (0, 1)),), 1, 0.0)
    here = lab(job(1, 4, ("a", 0, 1, 2, 3)), job(2, 4, ("b", 0, 1, 2, 3)), job(3, 4), warm=[warm])
    assert places_of(here, (3, 4))[3] == (("c", (0, 1, 2, 3)),)


def test_slots_of_a_victim_that_are_left_go_to_the_next():
    here = lab(job(1, 4, ("a", 0, 1, 2, 3)), job(2, 1), job(3, 2), nodes="a")
    assert places_of(here, (2, 1), (3, 2)) == {2: (("a", (0,)),), 3: (("a", (1, 2)),)}


def test_a_gang_that_finds_room_only_in_pieces_gets_it_by_one_move():
    """Nodes a and b have one free slot each; the single job on b moves to a, the others stay."""
    held = [
        job(1, 3, ("a", 0, 1, 2)),
        job(2, 1, ("b", 0)),
        job(3, 2, ("b", 1, 2)),
        job(4, 4, ("c", 0, 1, 2, 3)),
    ]
    here = lab(*held, job(5, 1, slots_per_replica=2))
    grants = [(n, len(taken(h.places))) for n, h in enumerate(held, 1)]
    places = places_of(here, *grants, (5, 1))
    assert places[5] == (("b", (0, 3)),) and places[2] == (("a", (3,)),)
    assert all(places[one.job_id] == one.places for one in held if one.job_id != 2)


def test_the_node_that_opens_by_the_fewest_moves_is_opened():
    held = [job(1, 1, ("a", 0)), job(2, 1, ("a", 1)), job(3, 1, ("a", 2)), job(4, 2, ("b", 0, 1))]
    here = lab(*held, job(5, 2, ("c", 0, 1)), job(6, 1, slots_per_replica=4))
    places = places_of(here, (1, 1), (2, 1), (3, 1), (4, 2), (5, 2), (6, 1), placed=Locality())
    assert places[6] == (("b", (0, 1, 2, 3)),) and places[4] == (("c", (2, 3)),)
    assert all(places[one.job_id] == one.places for one in here.jobs[:3])


def test_several_nodes_are_opened_for_a_gang_of_several_replicas():
    held = [job(n, 1, (node, 0)) for n, node in enumerate("abcd", 1)]
    here = lab(*held, job(5, 2, one_replica_per_node=True, slots_per_replica=4), nodes="abcd")
    places = places_of(here, (1, 1), (2, 1), (3, 1), (4, 1), (5, 2))
    assert {len(slots) for _, slots in places[5]} == {4} and len(places[5]) == 2
    assert sum(places[one.job_id] != one.places for one in held) == 2


def test_where_the_cheapest_move_does_not_help_the_next_is_tried():
    """The gang on a would find no other two slots on a node; the three jobs on b find three slots."""
    pair, singles = job(1, 1, ("a", 0, 1), slots_per_replica=2), [job(n, 1, ("b", n - 2)) for n in (2, 3, 4)]
    here = lab(pair, *singles, job(5, 3, ("c", 0, 1, 2)), job(6, 1, slots_per_replica=4))
    places = places_of(here, (1, 1), (2, 1), (3, 1), (4, 1), (5, 3), (6, 1))
    assert places[6] == (("b", (0, 1, 2, 3)),) and places[1] == pair.places


def test_nobody_moves_for_a_gang_that_would_still_find_no_place():
    held = [job(1, 3, ("a", 0, 1, 2)), job(2, 3, ("b", 0, 1, 2)), job(3, 3, ("c", 0, 1, 2))]
    places = places_of(lab(*held, job(4, 1, slots_per_replica=3)), (1, 3), (2, 3), (3, 3), (4, 1))
    assert places == {one.job_id: one.places for one in held}


def test_nobody_moves_who_must_stay_or_whose_policy_moves_nobody():
    held = [job(1, 3, ("a", 0, 1, 2)), job(2, 1, ("b", 0)), job(3, 2, ("b", 1, 2))]
    waits = job(4, 1, slots_per_replica=2)
    grants = [(1, 3), (2, 1), (3, 2), (4, 1)]
    assert 4 in places_of(lab(*held, waits, nodes="ab"), *grants)
    assert 4 not in places_of(lab(*held, waits, nodes="ab"), *grants, policy=Fixed)
    steady = [replace(one, not_preemptible_until=2000.0) for one in held]
    assert 4 not in places_of(lab(*steady, waits, nodes="ab"), *grants)


class Nowhere(Pack):
    def place(self, job, replicas, free, topology):
        return (("nowhere", tuple(range(replicas))),)


class Twice(Pack):
    def place(self, job, replicas, free, topology):
        return (("a", tuple(range(replicas))),)


@pytest.mark.parametrize("bad", [Nowhere(), Twice()])
def test_what_a_bad_placement_invents_is_refused(bad):
    with pytest.raises(ValueError, match=rf"not up|{messages.NOT_ALL_FREE}"):
        places_of(lab(job(1, 2), job(2, 2)), (1, 2), (2, 2), placed=bad)


def test_a_job_on_a_node_that_is_down_is_left_as_it_is():
    running = job(1, 2, ("a", 0), ("gone", 0), most=4)
    here = replace(lab(job(2, 1)), jobs=(running, job(2, 1)))
    here.free.remove((("a", (0,)),))
    for grants in ([(1, 2), (2, 1)], [(2, 1)], [(1, 1), (2, 1)], [(1, 4), (2, 1)]):
        assert places_of(here, *grants) == {1: running.places, 2: (("a", (1,)),)}


def test_a_gang_shrinks_where_it_has_least():
    here = lab(job(1, 1, ("a", 0), ("b", 0, 1), most=4))
    assert places_of(here, (1, 2)) == {1: (("b", (0, 1)),)}


def test_a_gang_does_not_grow_beyond_what_a_quota_leaves_it():
    lost_some = replace(job(1, 2, ("a", 0)), max_replicas=1)
    assert places_of(lab(lost_some), (1, 2)) == {1: lost_some.places}


def test_a_gang_grows_where_it_is():
    here = lab(job(1, 1, ("b", 0), most=4), job(2, 3, ("c", 0, 1, 2)))
    assert places_of(here, (1, 3), (2, 3), placed=Locality())[1] == (("b", (0, 1, 2)),)


def test_a_gang_that_would_be_slower_on_two_nodes_grows_as_far_as_its_own_goes():
    here = lab(job(1, 1, ("a", 0, 1), most=4), job(2, 1, ("a", 2)), nodes="ab")
    slow = replace(here, jobs=(replace(here.jobs[0], gradient_bytes=10**9, rates=((2, 1.0),)), here.jobs[1]))
    assert places_of(slow, (1, 4), (2, 1), placed=Locality())[1] == (("a", (0, 1, 3)),)


def test_a_gang_waits_for_one_node_and_says_until_when():
    held = [job(1, 3, ("a", 0, 1, 2)), job(2, 3, ("b", 0, 1, 2))]
    here = lab(*held, job(3, 2, since=900.0, remaining_s=900.0), nodes="ab")
    grants = ((1, 3), (2, 3), (3, 2))
    first = assign(here, Given(grants), Locality())
    assert (
        3 not in first.places
        and first.again_at == pytest.approx(1600.0)
        and first.delayed_since == {3: 1000.0}
    )
    second = assign(replace(here, now=1200.0, delayed_since=first.delayed_since), Given(grants), Locality())
    assert 3 not in second.places and second.again_at == first.again_at, "the time that it has waited counts"
    idle = assign(replace(here, now=1200.0, delayed_since=first.delayed_since), Given(grants[:2]), Locality())
    assert idle.delayed_since == first.delayed_since and idle.again_at is None, (
        "also while it is not its turn"
    )
    last = assign(
        replace(here, now=first.again_at, delayed_since=first.delayed_since), Given(grants), Locality()
    )
    assert last.places[3] == (("a", (3,)), ("b", (3,))) and last.again_at is None and last.delayed_since == {}
    assert 3 in places_of(here, *grants), "pack does not wait"


def test_who_waits_for_better_places_is_not_overtaken_where_turns_count():
    held = [job(1, 3, ("a", 0, 1, 2)), job(2, 3, ("b", 0, 1, 2))]
    here = lab(*held, job(3, 2, since=900.0), job(4, 1), nodes="ab")
    grants = [(1, 3), (2, 3), (3, 2), (4, 1)]
    assert 4 not in places_of(here, *grants, placed=Locality(), head_blocks=True)
    assert 4 in places_of(here, *grants, placed=Locality())


def test_a_warm_gang_is_ended_rather_than_a_gang_taken_apart():
    warm = WarmGang(7, "bob", (("c", (0,)),), 1, 0.0)
    held = [job(1, 3, ("a", 0, 1, 2)), job(2, 3, ("b", 0, 1, 2)), job(3, 2, ("c", 1, 2))]
    here = lab(*held, job(4, 2, since=900.0), warm=[warm])
    assignment = assign(here, Given(((4, 2),)), Locality())
    assert assignment.places[4] == (("c", (0, 3)),)
    assert assignment.again_at is None and assignment.delayed_since == {}


def test_those_that_are_left_of_a_gang_are_no_more_than_the_job_may_have():
    left = WarmGang(7, "ada", (("a", (0,)), ("b", (0,)), ("c", (0,))), 1, 0.0)
    whole = job(1, 1, most=2, one_replica_per_node=True, resumes_gang_id=7)
    found = assign(lab(whole, warm=[left]), Given(((1, 2),)), Pack())
    assert (found.places, found.warm) == ({1: left.places[:2]}, {1: left})
    loose = job(1, 2, resumes_gang_id=7)
    found = assign(lab(loose, warm=[left]), Given(((1, 2),)), Pack())
    assert count_slots(found.places[1]) == 2 and not found.warm, "a part of a task is none"


def test_a_running_gang_moves_together_when_that_pays_and_only_under_a_policy_that_moves_jobs():
    apart = job(1, 2, ("a", 0), ("b", 0), remaining_s=5000.0)
    assert places_of(lab(apart), (1, 2), placed=Locality()) == {1: (("a", (0, 1)),)}
    assert places_of(lab(apart), (1, 2), placed=Locality(), policy=Fixed) == {1: apart.places}
    assert places_of(lab(apart), (1, 2), placed=Spread()) == {1: apart.places}
    ending = replace(apart, remaining_s=50.0)
    assert places_of(lab(ending), (1, 2), placed=Locality()) == {1: ending.places}
    steady = replace(apart, not_preemptible_until=2000.0)
    assert places_of(lab(steady), (1, 2), placed=Locality()) == {1: steady.places}


def test_a_gang_that_is_restarted_anyway_goes_where_it_is_whole():
    here = lab(job(1, 1, ("a", 0), most=4, remaining_s=1.0), job(2, 3, ("a", 1, 2, 3)))
    assert places_of(here, (1, 3), (2, 3), placed=Locality())[1] == (("b", (0, 1, 2)),)


def test_a_gang_that_grows_live_is_not_moved_for_it():
    here = lab(job(1, 1, ("a", 0), most=4), job(2, 3, ("a", 1, 2, 3)), growing=[1])
    places = places_of(here, (1, 3), (2, 3), placed=Locality())
    assert set(places[1]) > {("a", (0,))}
