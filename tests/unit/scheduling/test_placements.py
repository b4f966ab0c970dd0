"""The nodes that each placement chooses, in small clusters."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minicluster_hub.scheduling.allocation.free_slots import FreeSlots, count_slots
from minicluster_hub.scheduling.base import JobView, Topology
from minicluster_hub.scheduling.placement import PLACEMENTS, placement
from minicluster_hub.scheduling.placement.dltap import Dltap, score
from minicluster_hub.scheduling.placement.locality import Locality, fewest_nodes
from minicluster_hub.scheduling.placement.round_robin import RoundRobin
from minicluster_hub.scheduling.placement.spread import Spread

from ... import messages

LAB = Topology({"a": 4, "b": 4, "c": 4})


def gang(replicas, *, job_id=1, one_replica_per_node=False, **more):
    return JobView(job_id, "ada", 0.0, replicas, replicas, one_replica_per_node=one_replica_per_node, **more)


def free(a, b, c):
    return FreeSlots({"a": range(a), "b": range(b), "c": range(c)})


def counts(places):
    return {node: len(slots) for node, slots in places}


def test_spread_deals_replicas_out_where_most_is_free():
    assert counts(Spread().place(gang(4), 4, free(4, 4, 4), LAB)) == {"a": 2, "b": 1, "c": 1}
    assert counts(Spread().place(gang(4), 4, free(1, 4, 2), LAB)) == {"b": 3, "c": 1}
    assert counts(Spread().place(gang(2, one_replica_per_node=True), 2, free(1, 4, 2), LAB)) == {
        "b": 1,
        "c": 1,
    }


def test_spread_takes_replicas_whole():
    asked = gang(3, slots_per_replica=2)
    assert counts(Spread().place(asked, 3, free(3, 4, 1), LAB)) == {"a": 2, "b": 4}
    assert Spread().place(asked, 3, free(3, 3, 1), LAB) is None, "7 slots, but only two pairs on one node"


def test_dltap_scores_as_published():
    assert [score(there, 4) for there in range(5)] == [1, 3, 6, 8, 11]


def test_dltap_begins_where_most_is_free_and_stays_there():
    assert counts(Dltap().place(gang(3), 3, free(2, 4, 3), LAB)) == {"b": 3}
    assert counts(Dltap().place(gang(5), 5, free(2, 4, 3), LAB)) == {"b": 4, "c": 1}


def test_dltap_grows_where_the_job_is():
    running = gang(2, places=(("a", (0, 1)),))
    assert counts(Dltap().place(running, 1, free(1, 4, 4), LAB)) == {"a": 1}


def test_round_robin_begins_with_the_next_node_for_the_next_job():
    taken = [RoundRobin().place(gang(1, job_id=n), 1, free(4, 4, 4), LAB) for n in range(6)]
    assert [counts(places) for places in taken] == [{"a": 1}, {"b": 1}, {"c": 1}] * 2


def test_round_robin_takes_the_next_node_with_room_for_the_whole_gang_and_spans_only_if_it_must():
    assert counts(RoundRobin().place(gang(3, job_id=1), 3, free(4, 2, 1), LAB)) == {"a": 3}
    assert counts(RoundRobin().place(gang(6, job_id=1), 6, free(4, 2, 1), LAB)) == {"a": 3, "b": 2, "c": 1}


def test_locality_takes_one_node_if_it_can_and_the_one_that_fits_best():
    assert counts(Locality().place(gang(2), 2, free(4, 2, 3), LAB)) == {"b": 2}
    assert counts(Locality().place(gang(4), 4, free(4, 2, 3), LAB)) == {"a": 4}


def test_locality_takes_the_fewest_nodes_where_one_is_not_enough():
    assert counts(Locality().place(gang(5), 5, free(1, 4, 3), LAB)) == {"a": 1, "b": 4}
    assert counts(Locality().place(gang(6), 6, free(1, 4, 3), LAB)) == {"b": 4, "c": 2}
    assert Locality().place(gang(9), 9, free(1, 4, 3), LAB) is None


def test_locality_grows_where_most_ranks_of_the_job_are():
    running = gang(3, places=(("a", (0,)), ("c", (0, 1))))
    assert counts(Locality().place(running, 1, free(1, 1, 1), LAB)) == {"c": 1}
    assert counts(Locality().place(running, 2, free(1, 4, 1), LAB)) == {"a": 1, "c": 1}, "no third node"


def test_locality_adds_no_replica_that_makes_a_job_slower():
    running = gang(4, places=(("a", (0, 1, 2, 3)),))
    assert Locality().place(running, 1, free(0, 4, 4), LAB) is None, "5 on two nodes are slower than 4 on one"
    assert counts(Locality().place(running, 2, free(0, 4, 4), LAB)) == {"b": 2}
    small = replace(running, gradient_bytes=1_000_000, rates=((4, 2.0),))
    assert counts(Locality().place(small, 1, free(0, 4, 4), LAB)) == {"b": 1}, "it exchanges next to nothing"


@given(st.lists(st.integers(0, 6), min_size=1, max_size=6), st.integers(1, 12), st.integers(1, 3))
def test_locality_never_takes_a_node_more_than_it_must(rooms, replicas, slots_per_replica):
    names = {f"n{number}": room for number, room in enumerate(rooms)}
    job, there = (
        gang(replicas, slots_per_replica=slots_per_replica),
        FreeSlots({n: range(r) for n, r in names.items()}),
    )
    places = Locality().place(job, replicas, there, Topology(names))
    if places is None:
        assert sum(room // slots_per_replica for room in rooms) < replicas
    else:
        assert len(places) == fewest_nodes(job, count_slots(places), Topology(names))


def test_a_gang_waits_for_one_node_as_long_as_two_would_cost_it():
    two, one = (("a", (0,)), ("b", (0,))), (("a", (0, 1)),)
    job, patient = gang(2, remaining_s=300.0), Locality(most_wait_s=600.0, patience=1.0)
    assert patient.max_delay_s(job, one, LAB) == 0.0
    assert patient.max_delay_s(job, two, LAB) == pytest.approx(100.0), "300 s become 400 s"
    assert replace(patient, patience=2.0).max_delay_s(job, two, LAB) == pytest.approx(200.0)
    assert patient.max_delay_s(replace(job, remaining_s=1e9), two, LAB) == 600.0, "never longer than that"
    limited = replace(job, remaining_s=None, time_limit_s=900.0)
    assert patient.max_delay_s(limited, two, LAB) == pytest.approx(100.0), "few need all their time"
    unknown = replace(job, remaining_s=None)
    assert patient.max_delay_s(unknown, two, LAB) == pytest.approx(600.0), "half an hour, if nothing is known"


def test_what_two_nodes_cost_follows_from_gradients_link_and_rate():
    two = (("a", (0,)), ("b", (0,)))
    job = gang(2, remaining_s=300.0, gradient_bytes=100_000_000, rates=((2, 1.0),))
    patient = Locality(patience=1.0)
    assert patient.max_delay_s(job, two, replace(LAB, link_bytes_s=1e9)) == pytest.approx(30.0)
    assert patient.max_delay_s(job, two, replace(LAB, link_bytes_s=10e9)) == pytest.approx(3.0)


def test_a_gang_that_no_node_could_hold_does_not_wait():
    places = (("a", (0, 1, 2, 3)), ("b", (0, 1)))
    assert fewest_nodes(gang(6), 6, LAB) == 2
    assert Locality().max_delay_s(gang(6), places, LAB) == 0.0


def test_a_running_gang_is_moved_together_only_if_it_wins_more_than_the_move_costs():
    places = (("a", (0,)), ("b", (0,)))
    job = gang(2, places=places, remaining_s=600.0, restart_cost_s=30.0)
    there = FreeSlots({"a": (0,), "b": (0,), "c": (2, 3)})

    def better(job, places=places):
        return Locality().better_places(job, places, there, LAB, 1000.0)

    assert better(job) == (("c", (2, 3)),), "it wins 200 s"
    assert better(replace(job, remaining_s=150.0)) is None, "it would win 50 s"
    assert better(replace(job, restart_cost_s=120.0)) is None
    smaller = replace(job, places=(*places, ("c", (0,))), remaining_s=1.0)
    assert better(smaller) == (("c", (2, 3)),), "it restarts anyway"


def test_nobody_is_moved_to_as_many_nodes_as_it_has():
    places = (("a", (0,)), ("b", (0,)))
    job = gang(2, places=places, remaining_s=1e6)
    there = FreeSlots({"a": (0,), "b": (0,), "c": (3,)})
    assert Locality().better_places(job, places, there, LAB, 0.0) is None
    more = replace(job, places=(*places, ("c", (3,))))
    assert Locality().better_places(more, places, there, LAB, 0.0) is None, "nor where it restarts anyway"


def test_replicas_that_are_to_be_scattered_are_not_gathered():
    places = (("a", (0,)), ("b", (0,)))
    job = gang(2, one_replica_per_node=True, places=places, remaining_s=1e6)
    assert Locality().better_places(job, places, free(4, 4, 4), LAB, 0.0) is None
    assert Locality().max_delay_s(replace(job, places=()), places, LAB) == 0.0


def test_slots_of_nodes_that_are_down_are_neither_given_nor_taken():
    here = FreeSlots({"a": (0, 1)})
    places = (("a", (0,)), ("gone", (0,)))
    here.remove(places)
    assert here.all() == (("a", (1,)),)
    here.add(places)
    assert (here.all(), here.names, here.count) == ((("a", (0, 1)),), ("a",), 2)
    with pytest.raises(ValueError, match=messages.NOT_ALL_FREE):
        here.remove((("a", (2,)),))


rooms = st.dictionaries(st.sampled_from("abcdef"), st.sets(st.integers(0, 5), max_size=6), min_size=1)


@pytest.mark.parametrize("name", PLACEMENTS)
@given(rooms, st.integers(1, 9), st.integers(1, 3), st.booleans(), st.integers(0, 50))
def test_a_placement_finds_places_exactly_where_there_is_room(
    name, there, replicas, slots_per_replica, one_replica_per_node, number
):
    here = FreeSlots(there)
    job = gang(
        replicas,
        job_id=number,
        slots_per_replica=slots_per_replica,
        one_replica_per_node=one_replica_per_node,
    )
    before, topology = here.all(), Topology({node: 6 for node in there})
    places = placement(name).place(job, replicas, here, topology)
    assert here.all() == before, "it changes nothing"
    assert (places is not None) == (
        here.replicas_that_fit(slots_per_replica, one_replica_per_node=one_replica_per_node) >= replicas
    )
    if places is not None:
        assert count_slots(places) == replicas * slots_per_replica and len(dict(places)) == len(places)
        assert all(
            set(slots) <= there[node] and len(slots) % slots_per_replica == 0 for node, slots in places
        )
        assert all(slots for _, slots in places)
        assert not one_replica_per_node or all(len(slots) == slots_per_replica for _, slots in places)


@given(rooms, st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(0, 5)), max_size=20))
def test_free_slots_answer_alike_however_they_came_to_be(there, changes):
    """Counting by updates or from scratch gives the same plan."""
    changed = FreeSlots(there)
    for node, slot in changes:
        if slot in changed.on(node):
            changed.remove(((node, (slot,)),))
        else:
            changed.add(((node, (slot,)),))
    anew = FreeSlots({node: changed.on(node) for node in changed.names})
    assert list(changed.nodes(0)) == list(anew.nodes(0))
    assert list(changed.roomy_nodes(0)) == list(anew.roomy_nodes(0))
    assert (changed.count, changed.all(), changed.names) == (anew.count, anew.all(), anew.names)
