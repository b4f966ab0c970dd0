"""FIFO, pack, warm gangs and reasons for waiting: pure functions over snapshots."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minicluster_hub.jobs.records import ServerRecord
from minicluster_hub.scheduling.allocation.free_slots import FreeSlots
from minicluster_hub.scheduling.base import JobView, Snapshot, Topology, WarmGang
from minicluster_hub.scheduling.placement import UnknownPlacement, placement
from minicluster_hub.scheduling.placement.pack import Pack
from minicluster_hub.scheduling.policies import UnknownPolicy, policy
from minicluster_hub.scheduling.policies.fifo import Fifo
from minicluster_hub.scheduling.reasons import explain
from minicluster_hub.scheduling.scheduler import Admit, Extend, Grow, Reclaim, Reuse, schedule

from ... import messages

THREE = {"node-1": 1, "node-2": 1, "node-3": 1}


def request(job_id, nodes=1, *, most=None, slots=1, owner="ada", **more):
    return JobView(job_id, owner, float(job_id), nodes, most or nodes, slots, **more)


def held(job_id, *nodes, owner="bob", ends_by=None, **more):
    places = tuple((node, (0,)) for node in nodes)
    return JobView(job_id, owner, 0.0, 1, 1, places=places, time_limit_s=ends_by, **more)


def gang(gang_id, *nodes, owner="ada", idle_since=0.0, **started_with):
    return WarmGang(gang_id, owner, tuple((node, (0,)) for node in nodes), 1, idle_since, **started_with)


def server(number, node, until, owner="ada"):
    return ServerRecord(number, owner, "", node, (0,), until, 0.0)


def snapshot(waiting, *, slots=THREE, warm=(), running=(), servers=(), now=1000.0, growing=()):
    free = FreeSlots({node: range(count) for node, count in slots.items()})
    for holder in running:
        free.remove(holder.places)
    for one in servers:
        free.remove(((one.node, one.slots),))
    jobs = (*running, *waiting)
    more = {"warm": tuple(warm), "servers": tuple(servers), "growing": frozenset(growing)}
    return Snapshot(now, jobs, free, Topology(slots), **more)


def decide(*args, **kwargs):
    return schedule(snapshot(*args, **kwargs), Fifo(), Pack()).decisions


def test_a_gang_gets_all_its_nodes():
    assert decide([request(1, 3)]) == (Admit(1, (("node-1", (0,)), ("node-2", (0,)), ("node-3", (0,)))),)


def test_an_uneven_gang_serves_slots_wherever_they_are_and_no_nodes():
    uneven = WarmGang(9, "ada", (("node-1", (0, 1)), ("node-2", (0,))), 1, 0.0)
    two_each = {"node-1": 2, "node-2": 2}
    loose = request(1, 3, one_replica_per_node=False)
    assert decide([loose], slots=two_each, warm=[uneven]) == (Reuse(1, 9),)
    assert decide([request(1, 2)], slots=two_each, warm=[uneven]) == (Reclaim(9),)
    smaller = request(1, 2, one_replica_per_node=False)
    assert decide([smaller], slots={"node-1": 2, "node-2": 1}, warm=[uneven]) == (Reclaim(9),)


def test_a_loose_job_that_lost_a_node_counts_the_slots_that_are_left():
    left = WarmGang(9, "ada", (("node-1", (0, 1)),), 1, 0.0)
    loose = request(1, 2, most=3, one_replica_per_node=False, resumes_gang_id=9)
    assert decide([loose], slots={"node-1": 2}, warm=[left]) == (Reuse(1, 9),)


def test_nobody_overtakes_under_fifo():
    running = [held(9, "node-1")]
    assert decide([request(1, 3), request(2, 1)], running=running) == ()


def test_a_range_takes_what_is_free_but_not_less_than_its_minimum():
    running = [held(9, "node-1")]
    (admitted,) = decide([request(1, 2, most=3)], running=running)
    assert [node for node, _ in admitted.places] == ["node-2", "node-3"]


def test_pack_leaves_whole_nodes_whole():
    free = FreeSlots({"a": (0, 1, 2, 3), "b": (1, 3), "c": (2,)})
    topology = Topology({"a": 4, "b": 4, "c": 4})
    assert Pack().place(request(1, 1, slots=2), 1, free, topology) == (("b", (1, 3)),)
    assert Pack().place(request(1, 2, slots=3), 2, free, topology) is None


def test_the_owners_warm_gang_is_used_again():
    warm = [gang(4, "node-1", "node-2", "node-3")]
    assert decide([request(1, 3)], warm=warm) == (Reuse(1, 4),)


def test_a_strangers_warm_gang_is_taken_back_and_never_reused():
    warm = [gang(4, "node-1", "node-2", "node-3", owner="bob")]
    assert decide([request(1, 3)], warm=warm) == (Reclaim(4),)


def test_a_warm_gang_is_reused_only_for_the_image_and_memory_it_was_started_with():
    warm = [gang(4, "node-1", "node-2", "node-3", image="lab/torch:2", shm_bytes=1 << 30)]
    like = {"image": "lab/torch:2", "shm_bytes": 1 << 30}
    assert decide([request(1, 3, **like)], warm=warm) == (Reuse(1, 4),)
    for other in ({}, {**like, "image": "lab/torch:3"}, {**like, "shm_bytes": None}):
        assert decide([request(1, 3, **other)], warm=warm) == (Reclaim(4),)


def test_only_as_many_warm_gangs_are_ended_as_are_needed():
    warm = [gang(4, "node-1", owner="bob", idle_since=1.0), gang(5, "node-2", owner="bob", idle_since=2.0)]
    assert decide([request(1, 2)], warm=warm) == (Reclaim(4),)


def test_slots_being_freed_for_one_job_are_not_given_to_the_next():
    warm = [gang(4, "node-1", "node-2", "node-3", owner="bob")]
    assert decide([request(1, 3), request(2, 1)], warm=warm) == (Reclaim(4),)


def test_the_reason_names_what_is_missing_and_who_has_it():
    running = [held(17, "node-1", ends_by=1600.0)]
    first, second = explain(snapshot([request(1, 3), request(2, 1)], running=running))
    assert (
        first.reason
        == f"needs 3 nodes with 1 free slot each; 2 are free {messages.UNTIL_JOB_ENDS.format(job=17)}"
    )
    assert first.expected_start_at == 1600.0
    assert (second.position, second.reason) == (2, f"waits for job 1, which is {messages.AHEAD_OF_IT}")
    assert second.expected_start_at is None


def test_the_reason_tells_of_nodes_that_are_down():
    (wait,) = explain(snapshot([request(1, 3)], slots={"node-1": 1}))
    assert "only 1 such node of the cluster is up" in wait.reason


def test_the_reason_names_notebook_servers_and_their_time():
    running = [held(17, "node-1", ends_by=9000.0)]
    servers = [server(1, "node-2", 14 * 3600 + 1200.0), server(2, "node-3", 500.0, "eve")]
    (wait,) = explain(snapshot([request(1, 3)], running=running, servers=servers))
    assert wait.reason == (
        f"needs 3 nodes with 1 free slot each; 0 are free {messages.UNTIL_JOB_ENDS.format(job=17)}; "
        "1 GPU is held by a notebook server of ada until 14:20 UTC; "
        f"1 GPU is held by a notebook server of eve, {messages.TIME_IS_OVER}"
    )
    assert wait.expected_start_at == 14 * 3600 + 1200.0


def test_unknown_names_list_the_valid_ones():
    with pytest.raises(UnknownPolicy, match=r"there are: backfill, .*, fifo"):
        policy("lottery")
    with pytest.raises(UnknownPlacement, match="there are: dltap, locality, pack"):
        placement("anywhere")


requests = st.builds(
    lambda job_id, least, more, slots, owner: request(
        job_id, least, most=least + more, slots=slots, owner=owner
    ),
    st.integers(1, 10_000),
    st.integers(1, 4),
    st.integers(0, 3),
    st.integers(1, 3),
    st.sampled_from(["ada", "bob", "cid"]),
)


@given(
    st.lists(requests, max_size=8, unique_by=lambda r: r.job_id),
    st.lists(st.integers(1, 4), min_size=1, max_size=5),
    st.lists(
        st.tuples(st.integers(0, 4), st.sampled_from(["ada", "bob"])), max_size=3, unique_by=lambda g: g[0]
    ),
)
def test_no_slot_twice_no_gang_in_part_and_the_same_plan_again(waiting, sizes, gangs):
    slots = {f"n{index}": count for index, count in enumerate(sizes)}
    warm = [gang(i, f"n{index}", owner=owner) for i, (index, owner) in enumerate(gangs) if index < len(sizes)]
    here = snapshot(waiting, slots=slots, warm=warm)
    decisions = schedule(here, Fifo(), Pack()).decisions
    assert decisions == schedule(here, Fifo(), Pack()).decisions
    wanted = {r.job_id: r for r in waiting}
    reclaimed = [g for g in warm if Reclaim(g.gang_id) in decisions]
    reused = {d.gang_id for d in decisions if isinstance(d, Reuse)}
    assert not reused & {g.gang_id for g in reclaimed}
    used = [
        (node, slot) for d in decisions if isinstance(d, Admit) for node, taken in d.places for slot in taken
    ]
    assert len(used) == len(set(used))
    free = {(node, slot) for node, left in here.free.all() for slot in left}
    assert set(used) <= free
    for decision in decisions:
        if isinstance(decision, Admit):
            asked = wanted[decision.job_id]
            assert asked.min_replicas <= len(decision.places) <= asked.max_replicas
            assert all(len(taken) == asked.slots_per_replica for _, taken in decision.places)
            assert len({node for node, _ in decision.places}) == len(decision.places)
    assert {w.job_id for w in explain(here)} == set(wanted)


def test_a_gang_that_lost_a_node_goes_on_with_those_it_has_and_keeps_its_memory():
    two_left = {"node-1": 1, "node-2": 1}
    survivors = gang(5, "node-1", "node-2")
    assert decide([request(1, 2, most=3)], slots=two_left, warm=[survivors]) == (Reuse(1, 5),)
    assert decide([request(1, 3)], slots=two_left, warm=[survivors]) == (), "waits for a third node"
    assert decide([request(1, 3)], warm=[survivors]) == (Extend(1, 5, (("node-3", (0,)),)),)


def test_those_that_are_left_go_on_at_once_and_do_not_wait_for_a_new_one_to_start():
    survivors = gang(5, "node-1", "node-2")
    assert decide([request(1, 2, most=3, resumes_gang_id=5)], warm=[survivors]) == (Reuse(1, 5),)
    assert decide([request(1, 3, resumes_gang_id=5)], warm=[survivors]) == (
        Extend(1, 5, (("node-3", (0,)),)),
    )


def test_another_node_is_added_only_when_the_network_has_settled_and_nobody_overtakes():
    survivors = gang(5, "node-1", "node-2")
    lost = request(1, 3, resumes_gang_id=5, awaits_network=True)
    assert decide([lost, request(2, 1)], warm=[survivors]) == ()
    (first, second) = explain(snapshot([lost, request(2, 1)], warm=[survivors]))
    assert (
        "lost a node" in first.reason and second.reason == f"waits for job 1, which is {messages.AHEAD_OF_IT}"
    )
    enough = replace(lost, min_replicas=2)
    assert decide([enough], warm=[survivors]) == (Reuse(1, 5),), "those that are left join nothing"
    (anew,) = decide([lost])
    assert isinstance(anew, Admit), "nor does a gang of its own"


def test_a_gang_is_not_extended_on_a_node_that_it_is_on():
    survivors = gang(5, "node-1", "node-2")
    (extended,) = decide([request(1, 3)], slots={"node-1": 3, "node-2": 3, "node-3": 1}, warm=[survivors])
    assert extended == Extend(1, 5, (("node-3", (0,)),))


def test_the_largest_gang_that_is_not_too_large_is_extended():
    warm = [gang(5, "node-1"), gang(6, "node-2", "node-3"), gang(7, "node-4", "node-5", "node-6", "node-7")]
    slots = {f"node-{number}": 1 for number in range(1, 9)}
    (extended,) = decide([request(1, 3)], slots=slots, warm=warm)
    assert (extended.gang_id, extended.places) == (6, (("node-8", (0,)),))


def test_a_running_job_grows_only_when_nobody_waits():
    running = [JobView(1, "ada", 0.0, 1, 3, places=(("node-1", (0,)),))]

    def grown(*waiting):
        return schedule(snapshot(waiting, running=running, growing=[1]), Fifo(), Pack()).decisions

    assert grown() == (Grow(1, (("node-2", (0,)), ("node-3", (0,)))),)
    assert grown(request(2, 3, owner="bob")) == ()
    more, admitted = grown(request(2, 1, owner="bob"))
    assert {node for node, _ in admitted.places} | {node for node, _ in more.places} == {"node-2", "node-3"}


def test_a_job_that_lost_a_node_keeps_the_others_and_takes_who_is_free_or_will_be_in_a_moment():
    left = gang(9, "node-3")
    lost = request(1, 2, most=3, resumes_gang_id=9)

    def decided(*releasing, waiting=(lost,), **more):
        here = snapshot(waiting, warm=[left], **more)
        for node in releasing:
            here.free.remove(((node, (0,)),))
            here.releasing.add(((node, (0,)),))
        return schedule(here, Fifo(), Pack()).decisions

    assert decided() == (Extend(1, 9, (("node-1", (0,)), ("node-2", (0,)))),)
    assert decided("node-1") == (Extend(1, 9, (("node-2", (0,)),)),), "one is enough for its least"
    assert decided("node-1", "node-2") == (), "the next one to be freed joins it: its gang is not given up"
    idle = gang(8, "node-1", owner="bob")
    held_out = snapshot([lost], warm=[left, idle], running=[held(7, "node-2")])
    assert schedule(held_out, Fifo(), Pack()).decisions == (Reclaim(8),), "that of others"
