"""Nodes for a notebook server: pure, over nodes, leases, servers and the owner's home."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minicluster.wire import PlaceServer
from minicluster_hub.jobs.records import Lease, NodeView, ServerRecord
from minicluster_hub.scheduling.servers import (
    Ledger,
    MakeRoom,
    Placed,
    ServerLimits,
    ServerRefused,
    check_same,
    place_server,
)

from ... import messages

NOW = 1_700_000_000.0  # 22:13:20 UTC
ALLOWED = ServerLimits(max_gpus=2, max_gpu_s=3600.0)


def node(number, *kinds, up=True):
    return NodeView(f"node-{number}", up, "127.0.0.1", kinds)


NODES = (node(1, "cpu", "gpu"), node(2, "gpu", "gpu"), node(3, "gpu", up=False))


def server(number, where, *slots, owner="bob", until=NOW + 600):
    return ServerRecord(number, owner, "", f"node-{where}", slots, until if slots else None, 0.0)


def by_server(record):
    return [Lease(record.node, slot, None, None, record.owner, False, record.id) for slot in record.slots]


def by_job(where, slot, job_id=17, owner="bob"):
    return Lease(f"node-{where}", slot, 100 + slot, job_id, owner, warm=job_id is None)


def place(*leases, nodes=NODES, servers=(), home=None, limits=ALLOWED, **ask):
    held = [*leases, *(lease for record in servers for lease in by_server(record))]
    ledger = Ledger(nodes, held, servers, home)
    return place_server("ada", PlaceServer(**ask), ledger, limits, NOW)


def refusal(*leases, **how):
    with pytest.raises(ServerRefused) as caught:
        place(*leases, **how)
    assert caught.value.hint.endswith(".")
    return caught.value.code, caught.value.message


def test_a_server_without_gpus_goes_where_the_fewest_are_and_holds_nothing():
    assert place() == Placed("node-1", (), None)
    assert place(servers=(server(1, 1),)) == Placed("node-2", (), None)
    assert place(servers=(server(1, 1), server(2, 2), server(3, 2))) == Placed("node-1", (), None)


def test_gpus_are_slots_of_that_kind_and_for_a_limited_time():
    assert place(gpus=1) == Placed("node-1", (1,), NOW + 3600)
    assert place(gpus=2) == Placed("node-2", (0, 1), NOW + 3600)
    assert place(gpus=1, gpu_s=60.0, node="node-2") == Placed("node-2", (0,), NOW + 60)
    assert place(gpus=1, gpu_s=9e9).until == NOW + 3600


def test_a_free_gpu_is_taken_before_a_warm_one():
    warm = by_job(1, 1, job_id=None, owner="cid")
    assert place(warm, gpus=1) == Placed("node-2", (0,), NOW + 3600)


def test_warm_gpus_count_as_free_and_are_asked_back():
    warm = [by_job(2, slot, job_id=None, owner="cid") for slot in (0, 1)]
    assert place(*warm, gpus=2) == MakeRoom("node-2", frozenset({100, 101}))
    assert place(warm[1], gpus=2) == MakeRoom("node-2", frozenset({101}))
    assert place(*warm, gpus=1, node="node-2") == MakeRoom("node-2", frozenset({100}))


def test_a_server_goes_home():
    assert place(home="node-2") == Placed("node-2", (), None)
    assert place(home="node-2", node="node-2") == Placed("node-2", (), None)
    assert place(home="node-2", node="node-1", shared_home=True) == Placed("node-1", (), None)


@pytest.mark.parametrize(
    ("how", "code", "words"),
    [
        (
            {"home": "node-3"},
            "home_node_down",
            f"{messages.HOME_IS_ON_NODE.format(user='ada', node='node-3')}, which is down",
        ),
        ({"home": "node-9"}, "home_node_down", "not in this cluster any more"),
        (
            {"home": "node-2", "node": "node-1"},
            "home_elsewhere",
            messages.HOME_IS_ON_NODE.format(user="ada", node="node-2"),
        ),
        ({"node": "node-9"}, "no_such_node", "there is no node node-9"),
        ({"node": "node-9", "home": "node-2"}, "no_such_node", "there is no node node-9"),
        ({"node": "node-3"}, "node_down", "node node-3 is down"),
        ({"nodes": NODES[2:]}, "node_down", "no node of this cluster is up"),
        ({"gpus": 3}, "gpu_not_allowed", "more than 2 GPUs"),
        ({"gpus": 1, "limits": ServerLimits()}, "gpu_not_allowed", "does not give GPUs"),
        ({"gpus": 2, "node": "node-1"}, "no_free_gpu", "node-1 does not have 2 GPUs; it has 1"),
        ({"gpus": 2, "nodes": NODES[:1]}, "no_free_gpu", "does not have 2 GPUs; it has 1"),
    ],
)
def test_each_refusal_has_a_name_and_a_sentence(how, code, words):
    found = refusal(**how)
    assert found[0] == code
    assert words in found[1]


def test_a_home_that_cannot_be_reached_may_be_given_up_and_no_other():
    for home in ("node-3", "node-9"):
        assert place(home=home, new_home=True).node in ("node-1", "node-2")
    assert place(home="node-2", new_home=True).node == "node-2"
    assert refusal(home="node-2", node="node-1", new_home=True)[0] == "home_elsewhere"


def test_who_holds_the_gpus_is_said_and_until_when():
    code, message = refusal(
        by_job(2, 0), servers=(server(4, 1, 1), server(5, 2, 1, owner="eve", until=NOW - 1)), gpus=1
    )
    assert code == "no_free_gpu"
    assert message == (
        f"{messages.NO_NODE_HAS}: 1 GPU is held by job 17 of bob; "
        "1 GPU is held by a notebook server of bob until 22:23 UTC; "
        f"1 GPU is held by a notebook server of eve, {messages.TIME_IS_OVER}"
    )


@pytest.mark.parametrize(
    ("until", "words"), [(NOW + 7200, "00:13 UTC tomorrow"), (NOW + 3 * 86400, "22:13 UTC in 3 days")]
)
def test_a_time_beyond_today_says_so(until, words):
    assert words in refusal(servers=(server(4, 1, 1, until=until),), gpus=1, node="node-1")[1]


def test_only_the_same_ask_has_the_same_answer():
    record = server(1, 2, 0)
    check_same(record, PlaceServer(gpus=1))
    check_same(record, PlaceServer(gpus=1, node="node-2", gpu_s=5.0))
    for other in ({"gpus": 0}, {"gpus": 2}, {"gpus": 1, "node": "node-1"}):
        with pytest.raises(ServerRefused, match="node-2 with 1 GPU") as caught:
            check_same(record, PlaceServer(**other))
        assert caught.value.code == "place_differs"


kinds = st.lists(st.sampled_from(["cpu", "gpu"]), max_size=4)
states = st.sampled_from(["free", "job", "warm", "server"])


@given(st.lists(st.tuples(kinds, st.booleans()), min_size=1, max_size=4), st.data())
def test_no_place_takes_a_held_slot_and_every_refusal_of_gpus_is_true(shapes, data):
    nodes = [node(number, *slots, up=up) for number, (slots, up) in enumerate(shapes)]
    leases, servers = [], []
    for number, (slots, _) in enumerate(shapes):
        for slot in range(len(slots)):
            match data.draw(states):
                case "job":
                    leases.append(by_job(number, slot))
                case "warm":
                    leases.append(by_job(number, slot, job_id=None))
                case "server":
                    servers.append(server(len(servers) + 1, number, slot))
    gpus = data.draw(st.integers(0, 2))
    held = {(lease.node, lease.slot): lease for lease in [*leases, *map(lambda s: by_server(s)[0], servers)]}

    def obtainable(view):
        slots = [slot for slot, kind in enumerate(view.slot_kinds) if kind == "gpu"]
        return sum((view.name, slot) not in held or held[view.name, slot].warm for slot in slots)

    try:
        found = place(*leases, nodes=nodes, servers=tuple(servers), gpus=gpus)
    except ServerRefused as refused:
        assert refused.code in ("node_down", "no_free_gpu")
        assert not [view for view in nodes if view.up and obtainable(view) >= gpus]
        return
    view = next(view for view in nodes if view.name == found.node)
    assert view.up
    if isinstance(found, Placed):
        assert len(found.slots) == gpus
        assert all((view.name, slot) not in held and view.slot_kinds[slot] == "gpu" for slot in found.slots)
    else:
        assert found.task_ids <= {lease.task_id for lease in leases if lease.warm}
