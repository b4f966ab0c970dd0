"""Kueue and Volcano as data: what is asked of them, what they answer, and where a granted gang runs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minicluster_hub.engines.capabilities import Place, PlacedGang, QueueRequest
from minicluster_hub.engines.kubernetes.queues.dialects import GROUP_NAME, Kueue, Volcano
from minicluster_hub.engines.kubernetes.queues.places import choose, taken_slots
from minicluster_hub.engines.kubernetes.queues.queue import digest

GPU = "nvidia.com/gpu"
REQUEST = QueueRequest(7, "ada", 0, 3, 3, 2)


def raw(**parts: Any) -> dict[str, Any]:
    return {"metadata": {"name": "minicluster-job-7-0", "labels": {}}, **parts}


def condition(kind: str, status: str, message: str = "") -> dict[str, str]:
    return {"type": kind, "status": status, "message": message}


def test_kueue_is_asked_for_all_replicas_of_a_gang_at_once() -> None:
    made = Kueue("lab", GPU).document({"name": "x"}, REQUEST, gpus=True)
    (pods,) = made["spec"]["podSets"]
    assert made["spec"]["queueName"] == "lab" and pods["count"] == 3 and "minCount" not in pods
    (container,) = pods["template"]["spec"]["containers"]
    assert container["resources"]["requests"][GPU] == "2"
    elastic = Kueue("lab", GPU).document({}, QueueRequest(7, "ada", 0, 1, 3, 2), gpus=True)
    assert elastic["spec"]["podSets"][0]["minCount"] == 1


def test_a_workload_is_granted_once_it_is_admitted() -> None:
    waiting = raw(
        spec={"podSets": [{"count": 3}]},
        status={"conditions": [condition("QuotaReserved", "False", "2 more GPUs needed")]},
    )
    found = Kueue("lab", GPU).read(waiting)
    assert (found.replicas, found.reason) == (0, "2 more GPUs needed")
    admitted = raw(
        spec={"podSets": [{"count": 3}]},
        status={
            "conditions": [condition("QuotaReserved", "True"), condition("Admitted", "True")],
            "admission": {"podSetAssignments": [{"count": 2}]},
        },
    )
    assert Kueue("lab", GPU).read(admitted).replicas == 2


def test_a_workload_that_was_evicted_is_taken_back() -> None:
    evicted = raw(status={"conditions": [condition("Evicted", "True", "preempted by another")]})
    found = Kueue("lab", GPU).read(evicted)
    assert found.taken_back and not found.replicas and found.reason == "preempted by another"


def test_volcano_is_asked_for_a_gang_and_binds_its_pods_together() -> None:
    volcano = Volcano("lab", GPU)
    made = volcano.document({"name": "x"}, REQUEST, gpus=True)
    assert made["spec"] == {"minMember": 3, "queue": "lab", "minResources": {GPU: "6"}}
    assert volcano.pod_marks("x") == {GROUP_NAME: "x"} and volcano.scheduler == "volcano"
    pending = raw(
        spec={"minMember": 3}, status={"phase": "Pending", "conditions": [condition("x", "True", "busy")]}
    )
    assert (volcano.read(pending).replicas, volcano.read(pending).reason) == (0, "busy")
    assert volcano.read(raw(spec={"minMember": 3}, status={"phase": "Inqueue"})).replicas == 3


def test_places_are_free_slots_of_different_nodes() -> None:
    slots = {"a": 2, "b": 4, "c": 2}
    assert choose(REQUEST, 3, slots, set()) == (Place("a", (0, 1)), Place("c", (0, 1)), Place("b", (0, 1)))
    assert choose(REQUEST, 3, slots, {("a", 0)}) == ()
    without = QueueRequest(7, "ada", 1, 2, 2, 2, without=("a",))
    assert {place.node for place in choose(without, 2, slots, set())} == {"b", "c"}


def test_replicas_share_a_node_where_they_may() -> None:
    request = QueueRequest(7, "ada", 0, 3, 3, 1, one_per_node=False)
    assert choose(request, 3, {"a": 4}, {("a", 1)}) == (Place("a", (0, 2, 3)),)


def test_taken_are_slots_of_gangs_and_what_was_granted() -> None:
    gang = PlacedGang(1, 7, 0, {12: Place("a", (0, 1))})
    assert taken_slots([gang], [(Place("b", (3,)),)]) == {("a", 0), ("a", 1), ("b", 3)}


@given(
    st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 4), min_size=1),
    st.integers(1, 4),
    st.integers(1, 2),
    st.booleans(),
    st.sets(st.tuples(st.sampled_from("abcdef"), st.integers(0, 3))),
)
def test_what_is_chosen_is_free_whole_and_enough(
    slots: dict[str, int], replicas: int, size: int, one_per_node: bool, taken: set[tuple[str, int]]
) -> None:
    request = QueueRequest(7, "ada", 0, replicas, replicas, size, one_per_node=one_per_node)
    places = choose(request, replicas, slots, taken)
    chosen = [(place.node, slot) for place in places for slot in place.slots]
    assert len(chosen) == len(set(chosen)) and taken.isdisjoint(chosen)
    assert all(slot < slots[node] for node, slot in chosen)
    assert len(chosen) in (0, replicas * size)
    if one_per_node:
        assert all(len(place.slots) == size for place in places)


@pytest.mark.parametrize("change", [{"max_replicas": 4}, {"owner": "bob"}, {"without": ("a",)}])
def test_a_request_that_differs_has_another_mark(change: dict[str, Any]) -> None:
    assert digest(REQUEST) == digest(QueueRequest(7, "ada", 0, 3, 3, 2))
    assert digest(replace(REQUEST, **change)) != digest(REQUEST)
