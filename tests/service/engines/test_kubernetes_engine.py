"""The engine `kubernetes` against a server that loses answers, refuses, and forgets."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from minicluster_hub.engines.base import LighthouseRefused, TaskLaunch, TaskRefused
from minicluster_hub.engines.capabilities import Place, PlacedGang, QueueRequest
from minicluster_hub.engines.kubernetes import exit_reasons
from minicluster_hub.engines.kubernetes.engine import KubernetesEngine
from minicluster_hub.engines.node_tokens import NodeTokens
from minicluster_hub.jobs.records import NodeView

from ...patience import eventually
from .kubernetes_api import KubernetesServer

NODES = ("pc-1", "pc-2", "pc-3")
PODS = "/api/v1/namespaces/jobs/pods"


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[KubernetesServer]:
    made = KubernetesServer(NODES)
    made.kubeconfig = await made.start(tmp_path)  # type: ignore[attr-defined]
    yield made
    await made.stop()


@pytest.fixture
async def engine(server: KubernetesServer) -> AsyncIterator[KubernetesEngine]:
    made = new_engine(server)
    await made.open()
    yield made
    await made.close()


def new_engine(server: KubernetesServer, **options: Any) -> KubernetesEngine:
    kubeconfig = server.kubeconfig  # type: ignore[attr-defined]
    return KubernetesEngine(kubeconfig=kubeconfig, namespace="jobs", image="notebook", **options)


def launch(number: int = 0, **changes: Any) -> TaskLaunch:
    values = {
        "task_id": 12 + number,
        "gang_id": 4,
        "owner": "ada",
        "node": NODES[number],
        "slots": (0,),
        "token": f"token-{number}",
        "service_urls": ("http://service/",),
        "job_id": 7,
        "attempt_id": 9,
    }
    return TaskLaunch(**{**values, **changes})


def left(server: KubernetesServer) -> set[str]:
    return server.names("pods") | server.names("secrets") | server.names("networkpolicies")


async def test_a_gang_shares_a_secret_and_walls_until_its_last_task(
    server: KubernetesServer, engine: KubernetesEngine
) -> None:
    gang = [launch(number) for number in range(3)]
    await asyncio.gather(*map(engine.start, gang))
    assert server.names("pods") == {f"minicluster-task-{one.task_id}" for one in gang}
    assert server.names("secrets") == server.names("networkpolicies") == {"minicluster-gang-4"}
    secret = server.objects["/api/v1/namespaces/jobs/secrets"]["minicluster-gang-4"]
    assert set(secret["data"]) == {"task-12", "task-13", "task-14"}
    assert all(view.alive and not view.starting for view in engine.tasks().values())
    walls = [one for one in server.requests if one.startswith("POST") and "networkpolicies" in one]
    assert len(walls) == 1
    await engine.end(12)
    assert engine.tasks()[12].clean and server.names("secrets")
    await asyncio.gather(engine.end(13), engine.end(14))
    assert not left(server)


async def test_a_pod_that_ends_is_told_with_its_last_words(
    server: KubernetesServer, engine: KubernetesEngine
) -> None:
    told: list[int] = []
    engine.on_change = lambda: told.append(1)
    await engine.start(launch())
    ended = {"name": "main", "state": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}}
    server.change(PODS, "minicluster-task-12", phase="Failed", containerStatuses=[ended])
    await eventually(lambda: not engine.tasks()[12].alive)
    view = engine.tasks()[12]
    assert view.exit_code == 137 and not view.node_lost and not view.clean and told
    assert "more memory than its limit" in view.detail and "the last words" in view.detail


async def test_a_new_engine_finds_tasks_lighthouses_and_what_was_left(
    server: KubernetesServer, engine: KubernetesEngine
) -> None:
    await engine.start(launch())
    assert engine.lighthouses is not None
    await engine.lighthouses.start(5)
    view = engine.lighthouses.views()[5]
    assert view.alive and view.address == "10.96.0.7:29510"
    await engine.start(launch(1, gang_id=6))
    server.remove(PODS, "minicluster-task-13")
    again = new_engine(server)
    await again.open()
    assert again.tasks().keys() == {12}
    assert again.lighthouses is not None and again.lighthouses.views() == {5: view}
    assert "minicluster-gang-6" not in left(server), "it was the gang's last task"
    await again.lighthouses.end(5)
    await again.end(12)
    assert not left(server) and not server.names("services")
    await again.close()


async def test_an_answer_that_is_lost_makes_no_second_pod(
    server: KubernetesServer, engine: KubernetesEngine
) -> None:
    server.loses_answer_to = f"POST {PODS}"
    await engine.start(launch())
    assert server.names("pods") == {"minicluster-task-12"} and engine.tasks()[12].alive
    assert not any(one.startswith("DELETE") for one in server.requests), "it is this start's own"


async def test_a_pod_of_a_start_that_was_cut_off_is_replaced(
    server: KubernetesServer, engine: KubernetesEngine
) -> None:
    old = {"metadata": {"name": "minicluster-task-12", "uid": "old", "labels": {}}, "spec": {}, "status": {}}
    server.put(PODS, old)
    await engine.start(launch())
    assert server.objects[PODS]["minicluster-task-12"]["metadata"].get("uid") != "old"


async def test_what_kubernetes_refuses_is_refused_with_its_words(
    server: KubernetesServer, engine: KubernetesEngine
) -> None:
    server.fails = lambda method, path: 403 if (method, path) == ("POST", PODS) else 0
    with pytest.raises(TaskRefused, match="refused the task on pc-1: as the test wants it"):
        await engine.start(launch())
    await engine.end(12)
    assert not left(server)


async def test_a_server_that_does_not_know_our_rights_yet_is_asked_again(
    server: KubernetesServer, engine: KubernetesEngine
) -> None:
    unknown = iter((401, 401))
    server.fails = lambda method, path: next(unknown, 0) if (method, path) == ("POST", PODS) else 0
    await engine.start(launch())
    assert engine.tasks()[12].alive


async def test_an_image_that_a_job_knows_by_another_registry_is_pulled_from_ours(
    server: KubernetesServer,
) -> None:
    """The job was submitted under another engine. Only the digest says that it is the same image."""
    ours, theirs = "registry.lab/notebook@sha256:aa", "127.0.0.1:5100/minicluster/notebook@sha256:aa"
    engine = new_engine(server, images=["registry.lab/other@sha256:bb", ours])
    await engine.open()
    await engine.start(launch(image=theirs))
    await engine.start(launch(1, image="127.0.0.1:5100/published@sha256:cc"))
    named = [pod["spec"]["containers"][0]["image"] for pod in server.objects[PODS].values()]
    assert sorted(named) == ["127.0.0.1:5100/published@sha256:cc", ours]
    await engine.close()


async def test_a_replica_of_a_model_is_reached_at_its_pod(
    server: KubernetesServer, engine: KubernetesEngine
) -> None:
    assert engine.task_address(12, "pc-1") == "", "its node is not the pod"
    await engine.start(launch(serves=True))
    assert engine.task_address(12, "pc-1") == "10.1.0.9"
    (walls,) = server.objects["/apis/networking.k8s.io/v1/namespaces/jobs/networkpolicies"].values()
    assert len(walls["spec"]["ingress"][0]["from"]) == 2, "the gang, and the job service"


async def test_a_pod_that_somebody_removes_is_a_lost_nodes(
    server: KubernetesServer, engine: KubernetesEngine
) -> None:
    await engine.start(launch())
    server.remove(PODS, "minicluster-task-12")
    await eventually(lambda: engine.tasks()[12].node_lost)


async def test_a_pod_that_was_drained_is_a_lost_nodes_however_late_we_hear_of_it(
    server: KubernetesServer, engine: KubernetesEngine
) -> None:
    await engine.start(launch())
    pod = copy.deepcopy(server.objects[PODS]["minicluster-task-12"])
    pod["metadata"]["deletionTimestamp"] = "2030-01-01T00:00:00Z"
    ended = {"name": "main", "state": {"terminated": {"exitCode": 143, "reason": "Error"}}}
    pod["status"] = {"phase": "Failed", "containerStatuses": [ended]}
    server.put(PODS, pod)
    await eventually(lambda: engine.tasks()[12].node_lost)
    assert not engine.tasks()[12].alive


async def test_a_pod_that_another_service_made_is_known_after_a_new_list(
    server: KubernetesServer, engine: KubernetesEngine
) -> None:
    expired = iter((410,))
    server.fails = lambda method, path: next(expired, 0) if (method, path) == ("GET", PODS) else 0
    server.forget_watches()
    marks = {"cluster": "minicluster", "role": "task", "task": "99", "gang": "9"}
    labels = {f"minicluster.org/{name}": value for name, value in marks.items()}
    stray = {"metadata": {"name": "minicluster-task-99", "labels": labels}, "spec": {"nodeName": "pc-1"}}
    server.put(PODS, stray | {"status": {"phase": "Running"}})
    await eventually(lambda: 99 in engine.tasks())
    assert server.requests.count(f"GET {PODS}") == 2
    await engine.end(99)
    assert not left(server)


async def test_a_server_that_restarts_loses_no_news(
    server: KubernetesServer, engine: KubernetesEngine
) -> None:
    await engine.start(launch())
    server.forget_watches()
    ended = {"name": "main", "state": {"terminated": {"exitCode": 1, "reason": "Error"}}}
    server.change(PODS, "minicluster-task-12", phase="Failed", containerStatuses=[ended])
    await eventually(lambda: not engine.tasks()[12].alive)


async def test_a_watch_whose_version_is_too_old_is_replaced_by_a_new_list(
    server: KubernetesServer, engine: KubernetesEngine
) -> None:
    await engine.start(launch())
    server.requests.clear()
    server.expire_watches()
    await eventually(lambda: f"GET {PODS}" in server.requests)
    ended = {"name": "main", "state": {"terminated": {"exitCode": 1, "reason": "Error"}}}
    server.change(PODS, "minicluster-task-12", phase="Failed", containerStatuses=[ended])
    await eventually(lambda: not engine.tasks()[12].alive)


async def test_a_node_that_is_not_ready_loses_its_tasks_and_ends_need_no_kubelet(
    server: KubernetesServer, engine: KubernetesEngine
) -> None:
    await engine.start(launch())
    server.dead_kubelets.add("pc-1")
    server.change("/api/v1/nodes", "pc-1", conditions=[{"type": "Ready", "status": "Unknown"}])
    await eventually(lambda: engine.tasks()[12].node_lost)
    assert not next(node for node in engine.nodes() if node.name == "pc-1").up
    await engine.end(12)
    assert engine.tasks()[12].clean and not left(server)


async def test_a_node_whose_device_plugin_restarts_keeps_its_slots_and_takes_no_task(
    server: KubernetesServer, engine: KubernetesEngine
) -> None:
    server.change("/api/v1/nodes", "pc-1", allocatable={"cpu": "8", "memory": "16Gi"})

    def node() -> NodeView:
        return next(node for node in engine.nodes() if node.name == "pc-1")

    await eventually(lambda: "device plugin" in node().closed)
    assert node().up and node().slot_kinds == ("gpu", "gpu")
    server.change("/api/v1/nodes", "pc-1", allocatable={"cpu": "8", "nvidia.com/gpu": "2"})
    await eventually(lambda: node().open)


async def test_a_lighthouse_that_is_refused_leaves_nothing(
    server: KubernetesServer, engine: KubernetesEngine
) -> None:
    server.fails = lambda method, path: 422 if (method, path) == ("POST", PODS) else 0
    assert engine.lighthouses is not None
    with pytest.raises(LighthouseRefused):
        await engine.lighthouses.start(5)
    assert not left(server) and not server.names("services") and not engine.lighthouses.views()


async def test_a_pod_that_cannot_start_fails_after_a_while(
    server: KubernetesServer, engine: KubernetesEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exit_reasons, "STUCK_AFTER_S", 0.2)
    server.runs_pods = False
    await engine.start(launch())
    assert engine.tasks()[12].starting
    why = {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": "1 Insufficient nvidia.com/gpu",
    }
    server.change(PODS, "minicluster-task-12", conditions=[why])
    await eventually(lambda: not engine.tasks()[12].alive)
    assert "no GPU of the node is free" in engine.tasks()[12].detail


async def test_data_set_agents_are_made_and_go_with_their_nodes(server: KubernetesServer) -> None:
    engine = new_engine(server, data_storage_class="local-path")
    await engine.open()
    agents, tokens = engine.data_agents, NodeTokens("secret")
    assert agents is not None

    def ensure(url: str = "http://service/", *, needed: bool = True) -> set[str]:
        """What the reconciler does at each tick."""
        agents.ensure_running((url,), tokens, needed=needed)
        return server.names("pods")

    await eventually(lambda: len(ensure()) == 3)
    assert server.names("persistentvolumeclaims") == server.names("pods") == server.names("secrets")
    server.remove("/api/v1/nodes", "pc-3")
    await eventually(lambda: len(ensure()) == 2)
    await eventually(lambda: len(server.names("persistentvolumeclaims")) == 2)
    other = "http://another/"
    await eventually(lambda: ensure(other, needed=False) and str(server.objects[PODS]).count(other) == 2)
    server.dead_kubelets.add("pc-1")
    server.change("/api/v1/nodes", "pc-1", conditions=[{"type": "Ready", "status": "Unknown"}])
    third = "http://third/"
    await eventually(lambda: ensure(third) and str(server.objects[PODS]).count(third) == 2)
    await engine.close()


# --- another queue ------------------------------------------------------------------------------

WORKLOADS = "/apis/kueue.x-k8s.io/v1beta1/namespaces/jobs/workloads"
ASK = QueueRequest(7, "ada", 0, 2, 2, 1)


@pytest.fixture
async def queued(server: KubernetesServer) -> AsyncIterator[KubernetesEngine]:
    made = new_engine(server, queue="kueue", queue_name="lab")
    await made.open()
    yield made
    await made.close()


def admit(server: KubernetesServer, name: str = "minicluster-job-7-0") -> None:
    """Answer as Kueue does."""
    conditions = [{"type": kind, "status": "True"} for kind in ("QuotaReserved", "Admitted")]
    server.change(WORKLOADS, name, conditions=conditions)


async def granted(engine: KubernetesEngine, request: QueueRequest = ASK) -> tuple[Place, ...]:
    queue = engine.batch_queue
    assert queue is not None
    await eventually(lambda: request.job_id in queue.request([request], []).granted)
    return queue.request([request], []).granted[request.job_id]


async def test_a_job_asks_kueue_once_and_its_gang_keeps_its_share(
    server: KubernetesServer, queued: KubernetesEngine
) -> None:
    queue = queued.batch_queue
    assert queue is not None
    await eventually(lambda: "waits in Kueue's queue" in queue.request([ASK], []).waits[7].reason)
    assert server.names("workloads") == {"minicluster-job-7-0"}
    admit(server)
    places = await granted(queued)
    assert len({place.node for place in places}) == 2
    assert await granted(queued) == places, "it is granted the same until it starts"
    tasks = {12 + number: place for number, place in enumerate(places)}
    for gang in (PlacedGang(4, 7, 0, tasks), PlacedGang(4, None, 0, tasks)):  # its job is over: it is warm
        queue.request([], [gang])
        await eventually(
            lambda: "4" in str(server.objects[WORKLOADS]["minicluster-job-7-0"]["metadata"]["labels"])
        )
    again = new_engine(server, queue="kueue")
    await again.open()
    assert again.batch_queue is not None
    again.batch_queue.request([], [PlacedGang(4, None, 0, tasks)])
    await asyncio.sleep(0.2)
    assert server.names("workloads"), "a new service knows by the label that the warm gang has it"
    again.batch_queue.request([], [])
    await eventually(lambda: not server.names("workloads"))
    await again.close()


async def test_what_kueue_takes_back_is_a_lost_node(
    server: KubernetesServer, queued: KubernetesEngine
) -> None:
    queue = queued.batch_queue
    assert queue is not None
    queue.request([ASK], [])
    await eventually(lambda: server.names("workloads"))
    admit(server)
    place, _ = await granted(queued)
    await queued.start(launch(0, node=place.node, slots=place.slots))
    queue.request([], [PlacedGang(4, 7, 0, {12: place})])
    assert queued.tasks()[12].alive
    evicted = {"type": "Evicted", "status": "True", "message": "preempted by the neighbours"}
    server.change(WORKLOADS, "minicluster-job-7-0", conditions=[evicted])
    await eventually(lambda: queued.tasks()[12].node_lost)
    assert "preempted by the neighbours" in queued.tasks()[12].detail


async def test_a_request_that_changes_replaces_the_one_before(
    server: KubernetesServer, queued: KubernetesEngine
) -> None:
    queue, more = queued.batch_queue, replace(ASK, max_replicas=3)
    assert queue is not None
    queue.request([ASK], [])
    await eventually(lambda: server.names("workloads"))

    def count() -> int:
        queue.request([more], [])
        found = server.objects[WORKLOADS].get("minicluster-job-7-0")
        return found["spec"]["podSets"][0]["count"] if found else 0

    await eventually(lambda: count() == 3)


async def test_a_queue_that_refuses_is_quoted(server: KubernetesServer, queued: KubernetesEngine) -> None:
    server.fails = lambda method, path: 422 if (method, path) == ("POST", WORKLOADS) else 0
    queue = queued.batch_queue
    assert queue is not None
    await eventually(lambda: "as the test wants it" in queue.request([ASK], []).waits[7].reason)
