"""The engine with Kueue as its queue, on a real API server.

Kueue itself wants a newer Kubernetes than Debian has the source of. So the test defines its kind of object
and answers in its place, as its documentation says.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from minicluster_hub.engines.base import EngineError, TaskLaunch
from minicluster_hub.engines.capabilities import Place, PlacedGang, QueueRequest
from minicluster_hub.engines.kubernetes.engine import KubernetesEngine

from ..patience import eventually
from .chart import rendered
from .lab.cluster import JOBS, PLATFORM, KubernetesCluster, path_of

GROUP, CLUSTER = "kueue.x-k8s.io", "queued"
WORKLOADS = f"/apis/{GROUP}/v1beta1/namespaces/{JOBS}/workloads"
ASK = QueueRequest(7, "ada", 0, 2, 2, 1)
GANG, TASK = 31, 310


def definition() -> dict[str, Any]:
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {"name": "v1beta1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": f"workloads.{GROUP}",
            # The API server wants to see that a group of this ending was approved.
            "annotations": {"api-approved.kubernetes.io": "unapproved, of the tests"},
        },
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {"plural": "workloads", "singular": "workload", "kind": "Workload"},
            "versions": [version | {"subresources": {"status": {}}}],
        },
    }


def rights() -> list[dict[str, Any]]:
    """Return the rights that the chart adds for a queue."""
    made = rendered({"jobs": {"namespace": JOBS, "queue": "kueue"}}, namespace=PLATFORM)
    return [one for one in made if one["metadata"]["name"] == "minicluster-queue"]


@pytest.fixture(scope="module")
def kueue(cluster: KubernetesCluster) -> KubernetesCluster:
    cluster.post("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", definition())
    for document in rights():
        cluster.post(path_of(document), document)
    return cluster


@pytest.fixture
async def engine(kueue: KubernetesCluster, product: tuple[str, str]) -> AsyncIterator[KubernetesEngine]:
    made = KubernetesEngine(
        kubeconfig=str(kueue.service_kubeconfig()),
        namespace=JOBS,
        image=product[1],
        cluster=CLUSTER,
        verify_gpus=False,
        queue="kueue",
        queue_name="lab",
    )
    async with asyncio.timeout(60):
        while True:
            try:
                await made.open()
                break
            except EngineError:  # Its kind of object is served a moment after it was defined.
                await asyncio.sleep(0.2)
    yield made
    await asyncio.gather(*map(made.end, made.tasks()))
    assert made.batch_queue is not None
    made.batch_queue.request([], [])
    await eventually(lambda: not made.batch_queue._view.objects)
    await made.close()


async def workload(cluster: KubernetesCluster) -> dict[str, Any]:
    """Return the only Workload, once it is there."""
    async with asyncio.timeout(60):
        while True:
            if items := (await asyncio.to_thread(cluster.get, WORKLOADS))["items"]:
                (only,) = items
                return only
            await asyncio.sleep(0.1)


async def answer(cluster: KubernetesCluster, *conditions: tuple[str, str], count: int = 2) -> None:
    """Answer the only Workload as Kueue does."""
    name = (await workload(cluster))["metadata"]["name"]
    listed = [{"type": kind, "status": "True", "message": message} for kind, message in conditions]
    status = {"conditions": listed, "admission": {"podSetAssignments": [{"name": "main", "count": count}]}}
    await asyncio.to_thread(cluster.patch, f"{WORKLOADS}/{name}/status", {"status": status})


def launch(cluster: KubernetesCluster, number: int, place: Place) -> TaskLaunch:
    return TaskLaunch(
        TASK + number,
        GANG,
        "ada",
        place.node,
        place.slots,
        "token",
        (f"http://{cluster.lab.root_address}:1/",),
        job_id=7,
        attempt_id=9,
    )


async def test_a_gang_waits_for_kueue_runs_and_is_given_back(
    kueue: KubernetesCluster, engine: KubernetesEngine
) -> None:
    queue = engine.batch_queue
    assert queue is not None and queue.name == "Kueue"
    assert "is being submitted" in queue.request([ASK], []).waits[7].reason
    asked = await workload(kueue)
    assert asked["spec"]["queueName"] == "lab" and asked["spec"]["podSets"][0]["count"] == 2
    await eventually(lambda: "waits in Kueue's queue" in queue.request([ASK], []).waits[7].reason)
    await answer(kueue, ("QuotaReserved", ""), ("Admitted", ""))
    await eventually(lambda: 7 in queue.request([ASK], []).granted)
    places = queue.request([ASK], []).granted[7]
    assert len({place.node for place in places}) == 2
    launches = [launch(kueue, number, place) for number, place in enumerate(places)]
    placed = PlacedGang(GANG, 7, 0, {one.task_id: Place(one.node, one.slots) for one in launches})
    queue.request([], [placed])
    await asyncio.gather(*map(engine.start, launches))
    await eventually(lambda: all(v.alive and not v.starting for v in engine.tasks().values()))
    # Its job is over, and the gang is warm: it keeps its share.
    queue.request([], [PlacedGang(GANG, None, 0, placed.tasks)])
    await asyncio.sleep(1)
    assert (await workload(kueue))["metadata"]["labels"]["minicluster.org/gang"] == str(GANG)


async def test_what_kueue_takes_back_is_a_lost_node(
    kueue: KubernetesCluster, engine: KubernetesEngine
) -> None:
    queue = engine.batch_queue
    assert queue is not None
    queue.request([ASK], [])
    await answer(kueue, ("QuotaReserved", ""), ("Admitted", ""))
    await eventually(lambda: 7 in queue.request([ASK], []).granted)
    places = queue.request([ASK], []).granted[7]
    launches = [launch(kueue, number, place) for number, place in enumerate(places)]
    placed = PlacedGang(GANG, 7, 0, {one.task_id: Place(one.node, one.slots) for one in launches})
    await asyncio.gather(*map(engine.start, launches))
    await eventually(lambda: all(v.alive and not v.starting for v in engine.tasks().values()))
    queue.request([], [placed])
    await answer(kueue, ("Evicted", "preempted by a job of the neighbours"))
    await eventually(lambda: all(view.node_lost for view in engine.tasks().values()))
    assert all("preempted by a job" in view.detail for view in engine.tasks().values())


async def test_a_cluster_without_it_is_told(cluster: KubernetesCluster, product: tuple[str, str]) -> None:
    made = KubernetesEngine(
        kubeconfig=str(cluster.plane.admin), namespace=JOBS, image=product[1], queue="volcano"
    )
    with pytest.raises(EngineError, match="Volcano is not installed"):
        await made.open()
    await made.close()
