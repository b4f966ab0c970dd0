"""A notebook on Kubernetes: the scenarios of all engines. The notebook server is a pod of KubeSpawner."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any

import pytest

from minicluster_hub.launch.demo import SERVICE_PATH
from minicluster_hub.launch.kernel import open_kernel
from minicluster_hub.launch.visitor import Visitor

from .. import scenarios
from ..hub.clusters import RunningCluster
from ..patience import WITHIN_S
from ..service.publishing.index import Index
from .hub import KubernetesSite, running
from .lab.cluster import JOBS, KubernetesCluster
from .lab.storage import make_volumes

Scenario = Callable[[scenarios.Site], Coroutine[Any, Any, None]]
PODS = f"/api/v1/namespaces/{JOBS}/pods?labelSelector=minicluster.org/cluster=cells"
TASKS = f"{PODS},minicluster.org/role=task"


@pytest.fixture(scope="module")
def index(cluster: KubernetesCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Index]:
    """An index of small packages, at an address that pods reach."""
    with Index(tmp_path_factory.mktemp("index"), cluster.lab.root_address) as served:
        served.add("tinytints", "1.0", {"tinytints/__init__.py": "RED = 'ff0000'\n"})
        yield served


@pytest.fixture(scope="module")
def hub(
    cluster: KubernetesCluster,
    product: tuple[str, str],
    index: Index,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[RunningCluster]:
    folder = tmp_path_factory.mktemp("kubernetes-hub")
    make_volumes(cluster)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MINICLUSTER_TREE", str(folder))
        patch.setenv("KUBECONFIG", str(cluster.plane.admin))
        started = running(cluster, product[1], index, folder)
        try:
            yield started
            assert started.end() == 0
        finally:
            started.kill()
            cluster.delete(PODS)  # the data set agents, which outlive a job service


@pytest.fixture
async def site(cluster: KubernetesCluster, hub: RunningCluster) -> AsyncIterator[KubernetesSite]:
    """The first user at work; afterwards, no task's pod is left."""
    async with Visitor(hub.url, "admin") as visitor:
        await visitor.log_in(hub.password)
        await visitor.start_server()
        await visitor.http.get(SERVICE_PATH)
        yield KubernetesSite(cluster, visitor)
    async with asyncio.timeout(WITHIN_S):
        while (await asyncio.to_thread(cluster.get, TASKS))["items"]:
            await asyncio.sleep(0.2)


@pytest.mark.parametrize("scenario", scenarios.ALL, ids=lambda scenario: scenario.__name__)
async def test_it_works_on_kubernetes(site: KubernetesSite, scenario: Scenario) -> None:
    await scenario(site)


async def test_a_restart_of_the_api_server_disturbs_no_job(
    cluster: KubernetesCluster, site: KubernetesSite
) -> None:
    async with open_kernel(site.visitor, scenarios.NOTEBOOK) as kernel:
        job = await scenarios.begun(site, kernel, "--nodes 3")
        await asyncio.to_thread(cluster.plane.kill, "apiserver")
        await asyncio.sleep(8)  # Longer than the silence after which a task counts as lost.
        await asyncio.to_thread(cluster.plane.start)
        found = await scenarios.ask(site, "GET", f"api/jobs/{job}")
        assert found["state"] == "running" and found["attempt"] == 1, await scenarios.history(site, job)
        await scenarios.ask(site, "POST", f"api/jobs/{job}/stop")
        assert (await scenarios.reached(site, job))["state"] == "stopped"
