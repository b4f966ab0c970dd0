"""200 gangs of 4 pods on a real API server and scheduler, without kubelets: time, calls, memory.

The nodes are entries only. Where a kubelet would run a pod, this program says that it runs. Prints a table
and one line per target.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import psutil
from parts.targets import Target, close

sys.path.append(str(Path(__file__).resolve().parents[1]))
from tests.kubernetes.lab.build import missing, programs
from tests.kubernetes.lab.control_plane import ControlPlane

from minicluster_hub.engines.base import TaskLaunch
from minicluster_hub.engines.kubernetes.api_client.client import KubernetesApi
from minicluster_hub.engines.kubernetes.engine import KubernetesEngine

GANGS, TASKS, NODES, GPUS = 200, 4, 100, 8
NAMESPACE = "default"
CALLS_BOUND = 4.0
"""Requests for each task, from its start to its end: Secret, pod, end, and its part of the gang's."""
MEMORY_BOUND_KB = 40.0
"""What the job service keeps of a task."""
PLACING_BOUND = 3.0
"""The time until all pods run, against that of one request per pod, one after the other."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gangs", type=int, default=GANGS)
    asked = parser.parse_args()
    if reason := missing():
        raise SystemExit(reason)
    logging.basicConfig(level=logging.WARNING)
    with tempfile.TemporaryDirectory(prefix="minicluster-bench-") as folder:
        plane = ControlPlane(programs(), Path(folder) / "plane", "127.0.0.1")
        try:
            plane.start(controllers=False)
            found = asyncio.run(measure(plane, asked.gangs))
        finally:
            plane.stop()
    close(found)


async def measure(plane: ControlPlane, gangs: int) -> list[Target]:
    async with opened(plane) as (engine, test):
        await make_nodes(test)
        one_by_one_s = await create_one_by_one(test, min(100, gangs * TASKS))
        launches = [launch(gang, number) for gang in range(gangs) for number in range(TASKS)]
        before_bytes = psutil.Process().memory_info().rss
        kubelets = asyncio.create_task(run_pods(plane))
        began = time.monotonic()
        await asyncio.gather(*(engine.start(one) for one in launches))
        created_s = time.monotonic() - began
        await until(lambda: all(view.alive and not view.starting for view in engine.tasks().values()))
        running_s = time.monotonic() - began
        kept_kb = (psutil.Process().memory_info().rss - before_bytes) / 1024 / len(launches)
        ended_at = time.monotonic()
        await asyncio.gather(*(engine.end(one.task_id) for one in launches))
        ended_s = time.monotonic() - ended_at
        kubelets.cancel()
        calls = Counter(engine._api.calls)
    server_mb = psutil.Process(plane.pid("apiserver")).memory_info().rss / 2**20
    count = len(launches)
    print(f"{gangs} gangs of {TASKS} pods on {NODES} nodes:")
    print(f"all created {created_s:.1f} s, all running {running_s:.1f} s, all ended {ended_s:.1f} s")
    print(f"one request per pod, one after the other: {one_by_one_s * count:.1f} s")
    print(f"requests for a gang: {sum(calls.values()) / gangs:.1f} ({dict(calls)})")
    print(f"kept of a task: {kept_kb:.0f} KB; the API server has {server_mb:.0f} MB")
    return [
        Target("kubernetes_calls_per_task", sum(calls.values()) / count, CALLS_BOUND),
        Target("kubernetes_running_to_one_by_one", running_s / (one_by_one_s * count), PLACING_BOUND),
        Target("kubernetes_kept_per_task_kb", kept_kb, MEMORY_BOUND_KB),
    ]


@contextlib.asynccontextmanager
async def opened(plane: ControlPlane) -> AsyncIterator[tuple[KubernetesEngine, KubernetesApi]]:
    """Yield the engine under test, and a client of the test's own, whose requests are not counted."""
    test = KubernetesApi(str(plane.admin))
    await make_account(test)
    engine = KubernetesEngine(
        kubeconfig=str(plane.admin), namespace=NAMESPACE, image="none", verify_gpus=False
    )
    await engine.open()
    try:
        yield engine, test
    finally:
        await engine.close()
        await test.close()


def launch(gang: int, number: int) -> TaskLaunch:
    """Return a task's launch; each has a GPU of its own."""
    index = gang * TASKS + number
    return TaskLaunch(
        task_id=index + 1,
        gang_id=gang + 1,
        owner=f"user{gang % 20}",
        node=f"node{index % NODES}",
        slots=(index // NODES,),
        token="t" * 43,
        service_urls=("https://minicluster:8443/services/minicluster/",),
        job_id=gang + 1,
        attempt_id=gang + 1,
    )


async def make_account(test: KubernetesApi) -> None:
    """Make the account that each pod has: no controller manager is there to do it."""
    namespace = {"metadata": {"name": NAMESPACE}}
    account = {"metadata": {"name": "default"}}
    with contextlib.suppress(Exception):
        await test.create("/api/v1/namespaces", namespace)
    await test.create(f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts", account)


async def make_nodes(test: KubernetesApi) -> None:
    size = {"cpu": "32", "memory": "256Gi", "pods": "110", "nvidia.com/gpu": str(GPUS)}
    ready = {"type": "Ready", "status": "True", "reason": "test", "message": ""}
    for number in range(NODES):
        name = f"node{number}"
        await test.create(
            "/api/v1/nodes",
            {
                "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
                "status": {"capacity": size, "allocatable": size, "conditions": [ready]},
            },
        )


async def create_one_by_one(test: KubernetesApi, count: int) -> float:
    """Return the mean seconds of one request that creates a small object."""
    path = f"/api/v1/namespaces/{NAMESPACE}/configmaps"
    began = time.monotonic()
    for number in range(count):
        await test.create(path, {"metadata": {"name": f"warm-up-{number}"}})
    return (time.monotonic() - began) / count


async def run_pods(plane: ControlPlane) -> None:
    """Say of each pod that was bound to a node that it runs; remove each one that is to end."""
    kubelets = KubernetesApi(str(plane.admin))
    path = f"/api/v1/namespaces/{NAMESPACE}/pods"
    listing = await kubelets.list_all(path)
    works: set[asyncio.Task[Any]] = set()
    try:
        async for kind, pod in kubelets.watch(path, "", listing.version):
            if work := _next(kubelets, path, kind, pod):
                works.add(task := asyncio.create_task(work))
                task.add_done_callback(works.discard)
    finally:
        await kubelets.close()


def _next(kubelets: KubernetesApi, path: str, kind: str, pod: dict[str, Any]) -> Any:
    if kind not in ("ADDED", "MODIFIED"):
        return None
    one = f"{path}/{pod['metadata']['name']}"
    if pod["metadata"].get("deletionTimestamp"):
        return kubelets.delete(one, grace_s=0)
    if pod["spec"].get("nodeName") and pod["status"].get("phase") == "Pending":
        state = {"name": "main", "ready": True, "restartCount": 0, "image": "none", "imageID": ""}
        state["state"] = {"running": {}}  # type: ignore[assignment]
        return kubelets.merge(f"{one}/status", {"status": {"phase": "Running", "containerStatuses": [state]}})
    return None


async def until(is_so: Any, within_s: float = 600.0) -> None:
    async with asyncio.timeout(within_s):
        while not is_so():  # noqa: ASYNC110 - what it looks at sets no event
            await asyncio.sleep(0.05)


if __name__ == "__main__":
    main()
