"""The engine `kubernetes` without a cluster: what the API says of pods and nodes, and what that means."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from decimal import Decimal
from typing import Any

import pytest

from minicluster_hub.engines.kubernetes.api_client.client import (
    ApiConflict,
    ApiExpired,
    ApiMissing,
    ApiNotAllowed,
    ApiRefused,
    ApiUnavailable,
    Document,
    KubernetesApi,
    Listing,
    _error,
    _plural,
)
from minicluster_hub.engines.kubernetes.api_client.watching import Watched
from minicluster_hub.engines.kubernetes.exit_reasons import exit_reason
from minicluster_hub.engines.kubernetes.images import KubernetesImages
from minicluster_hub.engines.kubernetes.node_leases import NodeLeases
from minicluster_hub.engines.kubernetes.view import (
    KubernetesNode,
    held_gpus,
    node_view,
    pod_view,
    quantity,
    slot_kinds,
)

GPU = "nvidia.com/gpu"


def raw_pod(phase: str = "Running", *, state: dict[str, Any] | None = None, **status: Any) -> dict[str, Any]:
    """A task's pod as listed by the API. state: of its container."""
    marks = {"minicluster.org/slots": "0,1", "minicluster.org/gpus": "2", "cni.org/address": "10.1.2.3"}
    metadata = {"name": "minicluster-task-12", "uid": "u1", "annotations": marks, "resourceVersion": "5"}
    metadata["labels"] = {"minicluster.org/role": "task", "minicluster.org/task": "12"}  # type: ignore[assignment]
    containers = {"containerStatuses": [{"name": "main", "state": state}]} if state else {}
    spec = {"nodeName": "pc-1", "containers": [{"image": "notebook"}]}
    return {"metadata": metadata, "spec": spec, "status": {"phase": phase, **containers, **status}}


def raw_node(name: str, *, gpus: int = 0, ready: str = "True", **spec: Any) -> dict[str, Any]:
    size = {"cpu": "7910m", "memory": "16Gi", **({GPU: str(gpus)} if gpus else {})}
    return {
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
        "spec": spec,
        "status": {
            "allocatable": size,
            "capacity": size,
            "conditions": [{"type": "Ready", "status": ready}],
            "addresses": [{"type": "InternalIP", "address": "10.0.0.2"}],
            "images": [{"names": ["r/notebook@sha256:1", "r/notebook:dev"]}, {"names": None}],
        },
    }


def node(name: str, **more: Any) -> KubernetesNode:
    return node_view(raw_node(name, **more), GPU, frozenset({"minicluster.org/jobs"}))


def ended(code: int, reason: str = "Error") -> dict[str, Any]:
    return {"terminated": {"exitCode": code, "reason": reason}}


# --- pods ---------------------------------------------------------------------------------------


def test_a_pod_is_starting_then_running_then_over() -> None:
    pulling = pod_view(raw_pod("Pending", state={"waiting": {"reason": "ContainerCreating"}}))
    assert pulling.starting and not pulling.running and not pulling.over and not pulling.waiting
    running = pod_view(raw_pod(state={"running": {}}))
    assert running.running and not running.starting and running.exit_code is None
    over = pod_view(raw_pod("Failed", state=ended(137)))
    assert over.over and not over.running and over.exit_code == 137


def test_a_pod_whose_container_ended_is_over_whatever_its_phase() -> None:
    assert pod_view(raw_pod("Running", state=ended(0, "Completed"))).over


def test_a_pod_that_is_started_again_and_again_is_not_over() -> None:
    raw = raw_pod("Running", state=ended(1))
    raw["spec"]["restartPolicy"] = "Always"
    assert not pod_view(raw).over
    raw["metadata"]["deletionTimestamp"] = "2030-01-01T00:00:00Z"
    assert pod_view(raw).over


def test_our_marks_of_a_pod_are_kept_and_no_others() -> None:
    assert set(pod_view(raw_pod()).marks) == {"minicluster.org/slots", "minicluster.org/gpus"}


@pytest.mark.parametrize(
    ("status", "words"),
    [
        ({"reason": "Evicted", "message": "low on ephemeral-storage"}, "used too much of the node's disk"),
        ({"reason": "OutOfcpu", "message": "Pod OutOfcpu"}, "has no room"),
        ({"reason": "NodeLost", "message": "gone"}, "NodeLost gone"),
        (
            {
                "conditions": [
                    {
                        "type": "PodScheduled",
                        "status": "False",
                        "reason": "Unschedulable",
                        "message": "0/3 nodes are available: 1 Insufficient nvidia.com/gpu.",
                    }
                ]
            },
            "no GPU of the node is free",
        ),
    ],
)
def test_a_reason_of_kubernetes_is_explained(status: dict[str, Any], words: str) -> None:
    assert words in exit_reason(pod_view(raw_pod("Failed", **status)))


@pytest.mark.parametrize(
    ("state", "words"),
    [
        (ended(137, "OOMKilled"), "more memory than its limit"),
        (
            {"waiting": {"reason": "ImagePullBackOff", "message": "Back-off"}},
            "could not get the image notebook",
        ),
        ({"waiting": {"reason": "CreateContainerConfigError"}}, "a Secret or a volume"),
        (ended(1), ""),
    ],
)
def test_a_reason_of_a_container_is_explained(state: dict[str, Any], words: str) -> None:
    reason = exit_reason(pod_view(raw_pod("Pending", state=state)))
    assert words in reason and bool(words) == bool(reason)


def test_the_end_of_a_node_is_no_fault_of_the_task() -> None:
    assert pod_view(raw_pod("Failed", reason="NodeShutdown")).node_failed
    assert pod_view(raw_pod("Failed", state=ended(137, "ContainerStatusUnknown"))).node_failed
    assert not pod_view(raw_pod("Failed", reason="Evicted")).node_failed


# --- nodes --------------------------------------------------------------------------------------


def test_a_node_says_what_it_has() -> None:
    made = node("pc-1", gpus=2)
    assert (made.gpus, made.cpus, made.memory_bytes) == (2, 7.91, 16 * 2**30)
    assert made.ready and not made.closed and made.address == "10.0.0.2"
    assert not node("pc-1", ready="Unknown").ready


def test_a_gpu_that_failed_does_not_count() -> None:
    raw = raw_node("pc-1", gpus=2)
    raw["status"]["allocatable"] = raw["status"]["allocatable"] | {GPU: "1"}
    assert node_view(raw, GPU, frozenset()).gpus == 1


@pytest.mark.parametrize(
    ("spec", "closed"),
    [
        ({"unschedulable": True}, "an admin has cordoned it"),
        ({"taints": [{"key": "control-plane", "effect": "NoSchedule"}]}, "its taint control-plane"),
        ({"taints": [{"key": "minicluster.org/jobs", "effect": "NoSchedule"}]}, ""),
        ({"taints": [{"key": "x", "effect": "PreferNoSchedule"}]}, ""),
        ({"taints": [{"key": "node.kubernetes.io/unreachable", "effect": "NoExecute"}]}, ""),
    ],
)
def test_a_node_is_closed_for_a_reason(spec: dict[str, Any], closed: str) -> None:
    found = node("pc-1", **spec).closed
    assert found.startswith(closed) and bool(found) == bool(closed)


def test_slots_are_gpus_or_one_processor_each() -> None:
    assert slot_kinds([node("a"), node("b")]) == {"a": ("cpu",), "b": ("cpu",)}
    assert slot_kinds([node("a", gpus=2), node("b")]) == {"a": ("gpu", "gpu"), "b": ()}


def test_a_device_plugin_that_restarts_takes_no_slot_from_a_task() -> None:
    held = held_gpus([pod_view(raw_pod())])
    assert held == {"pc-1": 2}
    assert slot_kinds([node("pc-1"), node("b", gpus=1)], held) == {"pc-1": ("gpu", "gpu"), "b": ("gpu",)}


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("2", 2),
        ("100m", "0.1"),
        ("16Gi", 16 * 2**30),
        ("3M", 3_000_000),
        ("1e3", 1000),
        ("1.5Ki", 1536),
        ("250u", "0.00025"),
        ("1E", 10**18),
        ("0", 0),
    ],
)
def test_quantities_are_read(text: str, number: object) -> None:
    assert quantity(text) == Decimal(str(number))


class Images(KubernetesImages):
    """Of nodes that need no cluster."""

    def __init__(self, *nodes: KubernetesNode) -> None:
        super().__init__(type("View", (), {"nodes": nodes})(), ("r/notebook:dev",))  # type: ignore[arg-type]


async def test_images_are_what_nodes_report() -> None:
    images = Images(node("a"), node("b"))
    assert images.on_nodes()["r/notebook:dev"] == {"a", "b"}
    assert await images.digest("r/notebook:dev") == "sha256:1"


# --- silent nodes -------------------------------------------------------------------------------


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_node_is_silent_once_others_renewed_and_it_did_not() -> None:
    clock = Clock()
    leases = NodeLeases(clock)
    leases.listed({"a": 40.0, "b": 40.0})
    for _ in range(2):
        clock.now += 10
        leases.renewed("a", 40.0)
    assert leases.silent("b") and not leases.silent("a")
    leases.renewed("b", 40.0)
    assert not leases.silent("b")


def test_no_node_is_silent_while_the_api_server_is() -> None:
    clock = Clock()
    leases = NodeLeases(clock)
    leases.listed({"a": 40.0, "b": 40.0})
    clock.now += 3600
    assert not leases.silent("a") and not leases.silent("b")
    leases.listed({"a": 40.0, "b": 40.0})
    assert not leases.silent("a") and not leases.silent("b")


def test_a_node_without_a_lease_is_never_silent() -> None:
    assert not NodeLeases(Clock()).silent("unknown")


# --- the API ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (404, ApiMissing),
        (409, ApiConflict),
        (410, ApiExpired),
        (403, ApiRefused),
        (422, ApiRefused),
        (429, ApiUnavailable),
        (503, ApiUnavailable),
        (401, ApiNotAllowed),
    ],
)
def test_errors_say_what_to_do(status: int, kind: type[Exception]) -> None:
    assert type(_error(status, "words")) is kind


def test_a_right_that_we_lack_is_no_fault_of_what_was_sent() -> None:
    words = 'pods is forbidden: User "x" cannot create resource "pods" in API group ""'
    assert type(_error(403, words)) is ApiNotAllowed
    assert type(_error(403, 'pods "x" is forbidden: exceeded quota: jobs')) is ApiRefused


@pytest.mark.parametrize(
    ("path", "plural"),
    [
        ("/api/v1/nodes", "nodes"),
        ("/api/v1/namespaces/x/pods/y", "pods"),
        ("/apis/networking.k8s.io/v1/namespaces/x/networkpolicies", "networkpolicies"),
        ("/version", "version"),
    ],
)
def test_calls_are_counted_by_kind(path: str, plural: str) -> None:
    assert _plural(path) == plural


class Script(KubernetesApi):
    """What a server answers, one after the other: races cannot be asked of a real one."""

    def __init__(self, *answers: Any) -> None:
        super().__init__()
        self.answers = list(answers)
        self.asked: list[str] = []

    async def list_all(self, path: str, labels: str = "") -> Listing:
        self.asked.append("list")
        answer = self.answers.pop(0)
        return answer() if callable(answer) else answer

    async def watch(self, path: str, labels: str, version: str) -> AsyncIterator[tuple[str, Document]]:
        self.asked.append(f"watch {version}")
        events = self.answers.pop(0) if self.answers else None
        if isinstance(events, Exception):
            raise events
        for event in events or ():
            yield event
        if not self.answers:
            await asyncio.get_running_loop().create_future()


def thing(name: str, version: int, value: str = "") -> Document:
    return {"metadata": {"name": name, "resourceVersion": str(version)}, "value": value}


def watched(api: Script) -> tuple[Watched[str], list[tuple[str, bool]]]:
    events: list[tuple[str, bool]] = []
    made = Watched(
        api,
        "/api/v1/things",
        "",
        lambda raw: str(raw.get("value")),
        lambda name, changed: events.append((name, changed)),
        logging.getLogger("test"),
    )
    return made, events


async def settled(api: Script) -> None:
    async with asyncio.timeout(30):
        while api.answers:
            await asyncio.sleep(0)
        await asyncio.sleep(0)


async def test_objects_are_listed_once_and_then_followed() -> None:
    api = Script(
        Listing([thing("a", 1, "one")], "4"),
        [
            ("MODIFIED", thing("a", 5, "two")),
            ("ADDED", thing("b", 6)),
            ("BOOKMARK", thing("", 9)),
            ("DELETED", thing("b", 10)),
        ],
    )
    things, events = watched(api)
    await things.open()
    await settled(api)
    assert things.objects == {"a": "two"}
    assert events == [("", True), ("a", True), ("b", True), ("b", True)]
    await things.close()


async def test_a_version_that_the_server_forgot_lists_everything_anew() -> None:
    api = Script(Listing([thing("a", 1)], "4"), ApiExpired("too old"), Listing([thing("b", 90)], "99"), [])
    things, _ = watched(api)
    await things.open()
    await settled(api)
    assert things.objects.keys() == {"b"}
    assert api.asked[:4] == ["list", "watch 4", "list", "watch 99"]
    await things.close()


async def test_a_watch_that_was_cut_off_goes_on_from_what_it_has_seen() -> None:
    api = Script(Listing([], "4"), [("ADDED", thing("a", 5))], ApiUnavailable("cut off"), [])
    things, _ = watched(api)
    await things.open()
    await settled(api)
    assert api.asked[:4] == ["list", "watch 4", "watch 5", "watch 5"]
    assert things.objects.keys() == {"a"}
    await things.close()


async def test_what_was_created_here_is_there_at_once_and_survives_an_older_list() -> None:
    created = asyncio.Event()
    api = Script(Listing([], "4"), ApiExpired("too old"))
    things, _ = watched(api)
    await things.open()

    def older_list() -> Listing:
        # The list was made before the object, and arrives after it.
        things.put(thing("new", 8, "mine"))
        created.set()
        return Listing([], "7")

    api.answers += [older_list, [("ADDED", thing("new", 8, "mine"))]]
    await created.wait()
    assert things.objects == {"new": "mine"}
    await settled(api)
    assert things.objects == {"new": "mine"}
    await things.close()


async def test_what_was_deleted_meanwhile_does_not_come_back_by_an_old_answer() -> None:
    api = Script(Listing([], "20"), [])
    things, _ = watched(api)
    await things.open()
    things.put(thing("gone", 12))
    assert not things.objects
    await things.close()
