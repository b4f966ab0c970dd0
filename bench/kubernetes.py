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
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import psutil
from parts.targets import Target, close

sys.path.append(str(Path(__file__).resolve().parents[1]))
from tests.kubernetes.lab.build import missing, programs
from tests.kubernetes.lab.control_plane import ControlPlane

from minicluster_hub.engines.base import TaskLaunch
from minicluster_hub.engines.kubernetes.api_client.client import ApiConflict, ApiMissing, KubernetesApi
from minicluster_hub.engines.kubernetes.api_client.watching import Watched
from minicluster_hub.engines.kubernetes.engine import KubernetesEngine

GANGS, TASKS, NODES, GPUS = 200, 4, 100, 8
NAMESPACE = "default"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
WAIT, RUN, RUNS, REMOVE = "wait", "run", "runs", "remove"
CALLS_BOUND = 4.0
"""Requests for each task, from its start to its end: Secret, pod, end, and its part of the gang's."""
MEMORY_BOUND_KB = 40.0
"""What the job service keeps of a task."""
PLACING_BOUND = 1.5
"""The time until all pods run, against as many pods without Secrets and walls."""


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
    launches = [launch(gang, number) for gang in range(gangs) for number in range(TASKS)]
    count = len(launches)
    async with opened(plane) as (engine, test), Kubelets(plane) as kubelets:
        await make_nodes(test)
        await until(lambda: len(engine.nodes()) == NODES)
        before_bytes = psutil.Process().memory_info().rss
        began = time.monotonic()
        await asyncio.gather(*(engine.start(one) for one in launches))
        created_s = time.monotonic() - began
        await until(lambda: all(view.alive and not view.starting for view in engine.tasks().values()))
        running_s = time.monotonic() - began
        kept_kb = (psutil.Process().memory_info().rss - before_bytes) / 1024 / count
        ended_at = time.monotonic()
        await asyncio.gather(*(engine.end(one.task_id) for one in launches))
        ended_s = time.monotonic() - ended_at
        calls = Counter(engine._api.calls)
        plain_s = await time_plain_pods(test, kubelets, count)
    server_mb = psutil.Process(plane.pid("apiserver")).memory_info().rss / 2**20
    print(f"{gangs} gangs of {TASKS} pods on {NODES} nodes:")
    print(f"all created {created_s:.1f} s, all running {running_s:.1f} s, all ended {ended_s:.1f} s")
    print(f"as many plain pods, all running: {plain_s:.1f} s")
    print(f"requests for a gang: {sum(calls.values()) / gangs:.1f} ({dict(calls)})")
    print(f"kept of a task: {kept_kb:.0f} KB; the API server has {server_mb:.0f} MB")
    return [
        Target("kubernetes_calls_per_task", sum(calls.values()) / count, CALLS_BOUND),
        Target("kubernetes_running_to_plain_pods", running_s / plain_s, PLACING_BOUND),
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
    with contextlib.suppress(ApiConflict):
        await test.create("/api/v1/namespaces", namespace)
    await test.create(f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts", account)


async def make_nodes(test: KubernetesApi) -> None:
    size = {"cpu": "32", "memory": "256Gi", "pods": "110", "nvidia.com/gpu": str(GPUS)}
    ready = {"type": "Ready", "status": "True", "reason": "test", "message": ""}
    for number in range(NODES):
        name = f"node{number}"
        node = {
            "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
            "status": {"capacity": size, "allocatable": size, "conditions": [ready]},
        }
        await test.create("/api/v1/nodes", node)
        # Each new node is tainted as not ready; the controller that removes this does not run.
        await test.merge(f"/api/v1/nodes/{name}", {"spec": {"taints": None}})


async def time_plain_pods(test: KubernetesApi, kubelets: Kubelets, count: int) -> float:
    """Return the seconds until as many pods run that have nothing but a GPU; then remove them."""
    resources = {"limits": {"nvidia.com/gpu": "1"}}
    container = {"name": "main", "image": "none", "resources": resources}
    spec = {"containers": [container], "automountServiceAccountToken": False}
    names = [f"plain-{number}" for number in range(count)]
    began = time.monotonic()
    await asyncio.gather(*(test.create(PODS, {"metadata": {"name": name}, "spec": spec}) for name in names))
    await until(lambda: kubelets.running == count)
    taken_s = time.monotonic() - began
    await asyncio.gather(*(test.delete(f"{PODS}/{name}", grace_s=0) for name in names))
    await until(lambda: not kubelets.steps)
    return taken_s


class Kubelets:
    """Says of each pod that was bound to a node that it runs; removes each one that is to end."""

    def __init__(self, plane: ControlPlane) -> None:
        self._api = KubernetesApi(str(plane.admin))
        log = logging.getLogger("kubelets")
        self._pods = Watched(self._api, PODS, "", next_step, self._seen, log)
        self._works: set[asyncio.Task[Any]] = set()

    async def __aenter__(self) -> Kubelets:
        await self._pods.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._pods.close()
        await asyncio.gather(*self._works, return_exceptions=True)
        await self._api.close()

    @property
    def steps(self) -> Mapping[str, str]:
        """What is next for each pod."""
        return self._pods.objects

    @property
    def running(self) -> int:
        return sum(step == RUNS for step in self.steps.values())

    def _seen(self, name: str, changed: bool) -> None:
        step = self._pods.objects.get(name)
        if changed and step in (RUN, REMOVE):
            self._works.add(task := asyncio.create_task(self._take(step, f"{PODS}/{name}")))
            task.add_done_callback(self._works.discard)

    async def _take(self, step: str, path: str) -> None:
        if step == REMOVE:
            await self._api.delete(path, grace_s=0)
            return
        state = {"name": "main", "ready": True, "restartCount": 0, "image": "none", "imageID": ""}
        status = {"phase": "Running", "containerStatuses": [state | {"state": {"running": {}}}]}
        with contextlib.suppress(ApiMissing):
            await self._api.merge(f"{path}/status", {"status": status})


def next_step(pod: dict[str, Any]) -> str:
    """Return what is next for a pod."""
    if pod["metadata"].get("deletionTimestamp"):
        return REMOVE
    if pod["status"].get("phase") == "Running":
        return RUNS
    return RUN if pod["spec"].get("nodeName") else WAIT


async def until(is_so: Any, within_s: float = 600.0) -> None:
    async with asyncio.timeout(within_s):
        while not is_so():  # noqa: ASYNC110 - what it looks at sets no event
            await asyncio.sleep(0.05)


if __name__ == "__main__":
    main()
