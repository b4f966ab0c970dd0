"""The engine `kubernetes` passes the suite for engines, on a real control plane and three kubelets."""

from __future__ import annotations

import asyncio

import pytest

from minicluster_hub.engines.base import Engine
from minicluster_hub.engines.kubernetes.names import CLUSTER

from ..patience import eventually
from ..service.engines.conformance import GANG, EngineConformance, Engines
from .harness import KubernetesHarness
from .lab.cluster import JOBS, KubernetesCluster
from .lab.nodes import PAUSE_IMAGE


class TestKubernetes(EngineConformance):
    @pytest.fixture(scope="class")
    def harness(self, cluster: KubernetesCluster, product: tuple[str, str]) -> KubernetesHarness:
        return KubernetesHarness(cluster, product[1])

    # --- what only this engine promises ---------------------------------------------------------

    async def test_a_restart_of_the_api_server_loses_no_task_and_no_news(
        self, engines: Engines, cluster: KubernetesCluster
    ) -> None:
        engine, gang = await engines.opened(), [engines.launch(number) for number in range(2)]
        await engines.running(engine, *gang)
        await asyncio.to_thread(cluster.plane.kill, "apiserver")
        await asyncio.to_thread(engines.harness.kill_agent, gang[0].task_id)
        assert all(view.alive and not view.node_lost for view in engine.tasks().values())
        await asyncio.to_thread(cluster.plane.start)
        await eventually(lambda: not engine.tasks()[gang[0].task_id].alive)
        assert engine.tasks()[gang[1].task_id].alive
        await engines.nothing_left(engine, *gang)

    async def test_a_start_waits_for_an_api_server_that_is_away(
        self, engines: Engines, cluster: KubernetesCluster
    ) -> None:
        engine, launch = await engines.opened(), engines.launch()
        await asyncio.to_thread(cluster.plane.kill, "apiserver")
        starting = asyncio.create_task(engine.start(launch))
        await eventually(lambda: engine.tasks()[launch.task_id].starting)
        await asyncio.to_thread(cluster.plane.start)
        await starting
        await engines.running(engine, launch)
        await engines.nothing_left(engine, launch)

    async def test_a_pod_that_an_admin_deletes_counts_as_lost_with_its_node(
        self, engines: Engines, cluster: KubernetesCluster
    ) -> None:
        engine, launch = await engines.opened(), engines.launch()
        await engines.running(engine, launch)
        path = f"/api/v1/namespaces/{JOBS}/pods/{CLUSTER}-task-{launch.task_id}"
        await asyncio.to_thread(cluster.delete, path)
        await eventually(lambda: engine.tasks()[launch.task_id].node_lost)
        await engines.nothing_left(engine, launch)

    async def test_a_lighthouse_is_reached_from_a_pod_at_its_services_address(
        self, engines: Engines, harness: KubernetesHarness
    ) -> None:
        engine, launch = await engines.opened(), engines.launch()
        assert engine.lighthouses is not None
        await engine.lighthouses.start(GANG)
        await engines.running(engine, launch)
        host, _, port = engine.lighthouses.views()[GANG].address.partition(":")
        await engines.look(lambda: harness.reaches(launch.task_id, host, port))
        await engine.lighthouses.end(GANG)
        await engines.nothing_left(engine, launch)

    async def test_a_cordoned_node_is_closed_with_the_reason(
        self, engines: Engines, cluster: KubernetesCluster
    ) -> None:
        engine, name = await engines.opened(), engines.harness.nodes[2]
        path = f"/api/v1/nodes/{name}"
        await asyncio.to_thread(cluster.patch, path, {"spec": {"unschedulable": True}})
        try:
            await eventually(lambda: "cordoned" in _closed(engine, name))
        finally:
            await asyncio.to_thread(cluster.patch, path, {"spec": {"unschedulable": False}})
        await eventually(lambda: not _closed(engine, name))

    async def test_gpus_that_others_hold_are_the_reason_of_a_task_that_cannot_start(
        self, engines: Engines, cluster: KubernetesCluster
    ) -> None:
        engine, node = await engines.opened(), engines.harness.nodes[0]
        pods, launch = f"/api/v1/namespaces/{JOBS}/pods", engines.launch()
        await asyncio.to_thread(cluster.post, pods, _foreign(node))
        try:
            await engines.look(lambda: cluster.get(f"{pods}/foreign")["spec"].get("nodeName"))
            await engine.start(launch)
            await eventually(lambda: not engine.tasks()[launch.task_id].alive)
            assert "no GPU of the node is free" in engine.tasks()[launch.task_id].detail
        finally:
            await asyncio.to_thread(cluster.delete, f"{pods}/foreign")
        await engines.nothing_left(engine, launch)


def _closed(engine: Engine, name: str) -> str:
    return next(node.closed for node in engine.nodes() if node.name == name)


def _foreign(node: str) -> dict[str, object]:
    """A pod of somebody else that has all GPUs of a node; that it never runs does not matter."""
    gpus = {"limits": {"nvidia.com/gpu": "2"}}
    container = {"name": "main", "image": PAUSE_IMAGE, "imagePullPolicy": "Never", "resources": gpus}
    chosen = {"kubernetes.io/hostname": node}
    spec = {"containers": [container], "nodeSelector": chosen, "terminationGracePeriodSeconds": 0}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "foreign"}, "spec": spec}
