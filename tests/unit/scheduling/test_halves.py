"""Halves of GPUs: two jobs share one, whole-GPU jobs wait for both, and whole GPUs are divided last."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minicluster.wire import CountRange, JobSpec, PlaceServer
from minicluster_hub.jobs.records import Lease, NodeView
from minicluster_hub.jobs.slot_numbers import halves, in_halves, overlap, slot_of, total
from minicluster_hub.scheduling.admission import AdmissionLimits, JobRefused, Submitter, admit
from minicluster_hub.scheduling.allocation.free_slots import FreeSlots
from minicluster_hub.scheduling.base import JobView, Snapshot, Topology, WarmGang
from minicluster_hub.scheduling.limits import Quota, Quotas
from minicluster_hub.scheduling.placement import PLACEMENTS, placement
from minicluster_hub.scheduling.planning.shares import standings
from minicluster_hub.scheduling.policies import POLICIES, policy
from minicluster_hub.scheduling.quotas import apply_quotas
from minicluster_hub.scheduling.reasons import explain
from minicluster_hub.scheduling.scheduler import Admit, Reclaim, Reuse, schedule
from minicluster_hub.scheduling.servers import (
    Ledger,
    MakeRoom,
    Placed,
    ServerLimits,
    ServerRefused,
    place_server,
)

NOW = 1000.0
FIRST, SECOND = halves(0)
THREE = {"node-1": 1, "node-2": 1, "node-3": 1}


def asks(job_id, nodes=1, size=0.5, owner="ada", **more):
    return JobView(job_id, owner, float(job_id), nodes, nodes, size, since=NOW - 10.0, **more)


def has(job_id, *places, size=0.5, owner="bob", **more):
    return asks(job_id, len(places), size, owner, places=places, **more)


def lab(*jobs, nodes=THREE, whole_only=(), warm=()):
    free = FreeSlots({node: range(count) for node, count in nodes.items()}, whole_only)
    for job in jobs:
        free.remove(job.places)
    return Snapshot(
        NOW,
        jobs,
        free,
        Topology(nodes, whole_only=frozenset(whole_only)),
        tuple(warm),
    )


def started(snapshot, ordered="fifo", placed="pack"):
    decisions = schedule(snapshot, policy(ordered), placement(placed)).decisions
    return {one.job_id: one.places for one in decisions if isinstance(one, Admit)}


ONE = {"node-1": 1}


@pytest.mark.parametrize("ordered", POLICIES)
@pytest.mark.parametrize("placed", PLACEMENTS)
def test_two_have_a_gpu_together_and_the_third_waits(ordered, placed):
    found = started(lab(asks(1), asks(2), asks(3), nodes=ONE), ordered, placed)
    assert len(found) == 2
    assert sorted(number for places in found.values() for number in dict(places)["node-1"]) == [FIRST, SECOND]


@pytest.mark.parametrize("placed", PLACEMENTS)
def test_a_divided_gpu_is_filled_before_another_one_is_divided(placed):
    running = has(7, ("node-2", (FIRST,)), not_preemptible_until=float("inf"))
    assert started(lab(running, asks(8)), placed=placed) == {8: (("node-2", (SECOND,)),)}


def test_a_job_for_whole_gpus_waits_for_both_halves():
    first, second = has(1, ("node-1", (FIRST,))), has(2, ("node-1", (SECOND,)))
    whole = asks(3, size=1)
    assert started(lab(first, second, whole, nodes=ONE)) == {}
    snapshot = lab(second, whole, nodes=ONE)
    assert started(snapshot) == {}
    (wait,) = explain(snapshot)
    assert wait.reason == "needs 1 node with 1 free slot each; 0 are free until job 2 ends"
    assert started(lab(whole, nodes=ONE)) == {3: (("node-1", (0,)),)}


def test_half_a_gpu_on_each_of_three_nodes():
    found = started(lab(asks(1, nodes=3)))
    assert found == {1: tuple((node, (FIRST,)) for node in THREE)}
    snapshot = lab(has(1, *((node, (FIRST,)) for node in THREE)), asks(2, nodes=3), asks(3, nodes=1))
    assert started(snapshot)[2] == tuple((node, (SECOND,)) for node in THREE)


def test_nodes_that_cannot_divide_their_gpus_get_none_and_the_reason_says_so():
    assert started(lab(asks(1), whole_only=["node-1", "node-2"])) == {1: (("node-3", (FIRST,)),)}
    (wait,) = explain(lab(asks(1), whole_only=THREE))
    assert wait.reason == "needs half a GPU free on 1 node; only 0 such nodes of the cluster are up"
    (wait,) = explain(lab(asks(1), has(2, ("node-3", (0,)), size=1), whole_only=["node-1", "node-2"]))
    assert wait.reason == "needs half a GPU free on 1 node; 0 are free until job 2 ends"


def test_priority_takes_half_and_leaves_the_other_half_alone():
    """Preemption takes the half of the less important job only, though both halves are on the same GPU."""
    low = has(1, ("node-1", (FIRST,)), priority=10, not_preemptible_until=0.0)
    high = has(2, ("node-1", (SECOND,)), priority=90, not_preemptible_until=0.0)
    assignment = schedule(
        lab(low, high, asks(3, priority=50), nodes=ONE), policy("priority"), placement("pack")
    )
    assert assignment.assignment.places == {2: high.places, 3: low.places}


def test_a_whole_gpu_is_taken_from_both_who_share_it():
    jobs = [
        has(n, ("node-1", (half,)), priority=10, not_preemptible_until=0.0)
        for n, half in ((1, FIRST), (2, SECOND))
    ]
    whole = asks(3, size=1, priority=50)
    found = schedule(lab(*jobs, whole, nodes=ONE), policy("priority"), placement("pack")).assignment
    assert found.places == {3: (("node-1", (0,)),)}


def test_backfill_reserves_the_gpu_until_the_later_half_ends():
    """A job for a whole GPU has a reservation; a light one may run beside a half that ends later anyway."""
    early = has(1, ("node-1", (FIRST,)), time_limit_s=100.0)
    late = has(2, ("node-1", (SECOND,)), time_limit_s=900.0)
    whole, short, long = asks(3, size=1), asks(4, time_limit_s=500.0), asks(5, time_limit_s=5000.0)
    ended = lab(late, whole, short, long, nodes=ONE)
    assert started(ended, "backfill") == {4: (("node-1", (FIRST,)),)}
    assert started(lab(early, late, whole, short, nodes=ONE), "backfill") == {}


def test_fairness_and_quotas_count_halves():
    snapshot = lab(has(1, ("node-1", (FIRST,)), owner="ada"), has(2, ("node-2", (0,)), size=1, owner="bob"))
    assert standings(snapshot, 3600.0) == {"ada": 1800.0, "bob": 3600.0}
    assert snapshot.jobs[0].consumed(NOW) == pytest.approx(5.0)
    quotas = Quotas({"ada": Quota(slots=1)})
    over = apply_quotas(
        lab(has(1, ("node-1", (FIRST,)), owner="ada"), asks(2), asks(3)), quotas, lambda _: 0.0
    )
    assert [job.job_id for job in over.snapshot.waiting] == [2]
    assert over.reasons == {3: "over your quota of 1 slots at once: 0.5 in use, 0.5 for your jobs before it"}


def test_a_warm_half_is_used_again_and_given_to_others_alone():
    warm = WarmGang(5, "ada", (("node-1", (FIRST,)),), 0.5, NOW - 5)
    other = has(1, ("node-1", (SECOND,)), not_preemptible_until=float("inf"))
    mine, theirs = (lab(other, asks(2, owner=owner), nodes=ONE, warm=[warm]) for owner in ("ada", "eve"))
    assert schedule(mine, policy("fifo"), placement("pack")).decisions == (Reuse(2, 5),)
    assert schedule(theirs, policy("fifo"), placement("pack")).decisions == (Reclaim(5),)
    whole = lab(asks(2, size=1, owner="ada"), nodes=ONE, warm=[warm])
    assert schedule(whole, policy("fifo"), placement("pack")).decisions == (Reclaim(5),)


def test_the_half_of_a_lost_node_is_missed_and_those_of_others_stay():
    jobs = has(1, ("node-1", (FIRST,)), ("node-2", (FIRST,))), has(2, ("node-2", (SECOND,)))
    snapshot = lab(*jobs, asks(3), asks(4, size=1))
    left = replace(
        snapshot, free=snapshot.free.without(["node-1"]), topology=Topology({"node-2": 1, "node-3": 1})
    )
    found = schedule(left, policy("fifo"), placement("pack")).assignment.places
    assert found[3] == (("node-3", (FIRST,)),) and 4 not in found
    assert found[1] == jobs[0].places and found[2] == jobs[1].places


numbers = st.sampled_from([0, 1, *halves(0), *halves(1)])


@given(st.lists(numbers, max_size=12))
def test_free_slots_are_what_was_not_taken_whatever_the_order(moves):
    """Taking and giving back slots and halves: never more nor less than the halves that are left."""
    free, held = FreeSlots({"n": range(2)}), list[int]()
    for number in moves:
        if number in held:
            held.remove(number)
            free.add((("n", (number,)),))
        elif overlap([number], held):
            with pytest.raises(ValueError, match="free"):
                free.remove((("n", (number,)),))
        else:
            held.append(number)
            free.remove((("n", (number,)),))
        left = set(in_halves([0, 1])) - set(in_halves(held))
        assert set(in_halves(free.numbers("n"))) == left
        assert free.count == total(left)
        assert free.room("n", 0.5) == len(left)
        assert free.room("n", 1) == sum(set(halves(slot)) <= left for slot in (0, 1))
        assert all(slot_of(half) in (0, 1) for half in free.first("n", 2, 0.5))


SHARES = [NodeView(f"node-{n}", True, "", ("gpu",), no_gpu_share="") for n in (1, 2)]
OLD = NodeView("node-3", True, "", ("gpu",), no_gpu_share="its compute capability 6.1 is below 7.0 (Volta)")
SPEC = JobSpec(payload_sha256="0" * 64, gpu_share=0.5)


def test_a_light_job_gets_nodes_that_share_and_no_others():
    admitted = admit(SPEC, [*SHARES, OLD], Submitter(quota=Quota(slots=1)), AdmissionLimits())
    assert admitted.nodes == CountRange(min=2, max=2)
    many = SPEC.model_copy(update={"nodes": CountRange(min=3, max=3)})
    with pytest.raises(JobRefused, match="needs 3 nodes with half a GPU each; this cluster has 2 of them"):
        admit(many, [*SHARES, OLD], Submitter(), AdmissionLimits())


def test_it_is_refused_where_no_node_shares_with_each_nodes_reason():
    cpu = NodeView("node-4", True, "", ("cpu",), no_gpu_share="it has no GPU")
    with pytest.raises(JobRefused) as refused:
        admit(SPEC, [OLD, cpu], Submitter(), AdmissionLimits())
    assert (refused.value.code, refused.value.message) == (
        "no_gpu_share",
        f"no node shares its GPUs (node-3: {OLD.no_gpu_share}; node-4: it has no GPU)",
    )


def server(*leases, nodes=SHARES, gpus=0.5):
    ledger = Ledger(nodes, leases, (), None)
    return place_server("ada", PlaceServer(gpus=gpus), ledger, ServerLimits(1, 3600.0), NOW)


def lease(node, number, warm=False):
    return Lease(node, number, 40 + number, None if warm else 4, "bob", warm)


def test_a_notebook_server_takes_the_free_half_beside_a_light_job():
    assert server(lease("node-2", SECOND)) == Placed("node-2", (FIRST,), NOW + 3600.0)
    assert server() == Placed("node-1", (FIRST,), NOW + 3600.0)
    assert server(lease("node-2", SECOND), gpus=1) == Placed("node-1", (0,), NOW + 3600.0)
    full = lease("node-1", 0), lease("node-2", FIRST, warm=True), lease("node-2", SECOND)
    assert server(*full) == MakeRoom("node-2", frozenset({40 + FIRST}))


def test_a_notebook_server_is_refused_half_a_gpu_with_the_reason():
    with pytest.raises(ServerRefused, match=r"no node shares its GPUs \(node-3: its compute capability"):
        server(nodes=[OLD])
    with pytest.raises(ServerRefused, match="no node has half a GPU free: 2 GPUs are held by job 4 of bob"):
        server(lease("node-1", 0), lease("node-2", FIRST), lease("node-2", SECOND))
