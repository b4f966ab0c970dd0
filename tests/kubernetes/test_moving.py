"""The data of a cluster on another engine goes on with Kubernetes: users, jobs and data sets.

Homes do not: here a notebook server has none that stays. What the documentation does with claims has no test.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from minicluster_hub.launch.demo import SERVICE_PATH
from minicluster_hub.launch.kernel import open_kernel
from minicluster_hub.launch.visitor import Visitor

from .. import scenarios
from ..hub.clusters import RunningCluster
from ..service.publishing.index import Index
from .hub import KubernetesSite, running
from .lab.cluster import JOBS, KubernetesCluster
from .lab.storage import make_volumes

PODS = f"/api/v1/namespaces/{JOBS}/pods?labelSelector=minicluster.org/cluster=cells"


@contextmanager
def on_kubernetes(cluster: KubernetesCluster, image: str, folder: Path) -> Iterator[RunningCluster]:
    """Run a hub and a job service on the data below a folder; afterwards, no pod is left."""
    make_volumes(cluster)
    with Index(folder / "index", cluster.lab.root_address) as index:
        started = running(cluster, image, index, folder)
        try:
            yield started
            assert started.end() == 0
        finally:
            started.kill()
            cluster.delete(PODS)


async def at_work(visitor: Visitor, password: str) -> None:
    await visitor.log_in(password)
    await visitor.start_server()
    await visitor.http.get(SERVICE_PATH)


async def with_a_data_set(cluster: KubernetesCluster, before: RunningCluster, password: str) -> int:
    """Have Ada push a data set on one machine, and read it in a job; return the job's id."""
    async with Visitor(before.url, "ada") as ada:
        await at_work(ada, password)
        site = KubernetesSite(cluster, ada)
        await scenarios.data_set(site)
        return (await scenarios.newest_job(site))["id"]


async def test_users_jobs_and_data_sets_move(
    cluster: KubernetesCluster,
    product: tuple[str, str],
    tree: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MINICLUSTER_TREE", str(tree))
    before = RunningCluster(tmp_path / "before")
    try:
        password = before.add_user("ada")
        job = await with_a_data_set(cluster, before, password)
        assert before.end() == 0
    finally:
        before.kill()
    (tmp_path / "data").mkdir()
    for name in ("passwords.json", "hub", "service"):
        (before.data / name).rename(tmp_path / "data" / name)
    monkeypatch.setenv("MINICLUSTER_TREE", str(tmp_path))
    monkeypatch.setenv("KUBECONFIG", str(cluster.plane.admin))
    with on_kubernetes(cluster, product[1], tmp_path) as after:
        async with Visitor(after.url, "ada") as ada:
            await at_work(ada, password)
            site = KubernetesSite(cluster, ada)
            assert (await scenarios.ask(site, "GET", f"api/jobs/{job}"))["state"] == "succeeded"
            async with open_kernel(ada, scenarios.NOTEBOOK) as kernel:
                scenarios.text(await kernel.run(scenarios.READ))
                assert await kernel.evaluate("read") == "'one of them'"
            assert set((await scenarios.newest_job(site))["nodes"]) == set(site.nodes)
