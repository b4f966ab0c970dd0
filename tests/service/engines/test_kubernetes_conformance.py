"""The engine `kubernetes` passes the suite for engines; here its pods are processes."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from minicluster_hub.engines.kubernetes.engine import KubernetesEngine

from .conformance import EngineConformance, EngineHarness
from .kubernetes_api import Document, KubernetesServer

AGENT = "import time; time.sleep(600)"
PODS = "/api/v1/namespaces/jobs/pods"
NODES = "/api/v1/nodes"


class ProcessServer(KubernetesServer):
    """Each pod is a process of this machine, started and ended by this server as by a kubelet."""

    def __init__(self, nodes: tuple[str, ...]) -> None:
        super().__init__(nodes)
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def _run(self, pod: Document) -> None:
        super()._run(pod)
        name = pod["metadata"]["name"]
        variables = {one["name"]: one.get("value", "") for one in pod["spec"]["containers"][0]["env"]}
        self.processes[name] = subprocess.Popen([sys.executable, "-c", AGENT], env=variables)

    def remove(self, path: str, name: str) -> None:
        super().remove(path, name)
        if path == PODS and (process := self.processes.pop(name, None)):
            process.kill()
            process.wait()

    def kill(self, name: str) -> None:
        """Kill a pod's process; its kubelet tells of it."""
        self.processes[name].kill()
        code = self.processes[name].wait()
        ended = {"name": "main", "state": {"terminated": {"exitCode": 128 - code, "reason": "Error"}}}
        self.change(PODS, name, phase="Failed", containerStatuses=[ended])

    def lose(self, node: str) -> None:
        """Kill all processes of a node; nobody tells of them."""
        for name, pod in self.objects[PODS].items():
            if pod["spec"].get("nodeName") == node:
                self.processes[name].kill()
        self.dead_kubelets.add(node)
        self.ready(node, "Unknown")

    def come_back(self, node: str) -> None:
        self.dead_kubelets.discard(node)
        self.ready(node, "True")

    def ready(self, node: str, status: str) -> None:
        self.change(NODES, node, conditions=[{"type": "Ready", "status": status}])


class StandInHarness(EngineHarness):
    nodes = ("pc-1", "pc-2", "pc-3")

    def __init__(self, server: ProcessServer, kubeconfig: str) -> None:
        self._server = server
        self._kubeconfig = kubeconfig
        self._loop = asyncio.get_running_loop()

    def make(self) -> KubernetesEngine:
        return KubernetesEngine(kubeconfig=self._kubeconfig, namespace="jobs", image="notebook")

    def agents(self, task_id: int) -> int:
        found = self._server.processes.get(f"minicluster-task-{task_id}")
        return int(found is not None and found.poll() is None)

    def kill_agent(self, task_id: int) -> None:
        self._in_loop(lambda: self._server.kill(f"minicluster-task-{task_id}"))

    def shown(self, task_id: int) -> str:
        name = f"minicluster-task-{task_id}"
        process = self._server.processes[name].pid
        files = [Path(f"/proc/{process}/{what}").read_text() for what in ("environ", "cmdline")]
        return "\n".join([json.dumps(self._server.objects[PODS][name]), *files])

    def lose(self, node: str) -> None:
        self._in_loop(lambda: self._server.lose(node))

    def bring_back(self, node: str) -> None:
        self._in_loop(lambda: self._server.come_back(node))

    def leftovers(self) -> list[str]:
        kinds = ("pods", "secrets", "services", "networkpolicies")
        return [*self._server.processes, *(name for kind in kinds for name in self._server.names(kind))]

    def _in_loop(self, act: Callable[[], Any]) -> None:
        async def done() -> None:
            act()

        asyncio.run_coroutine_threadsafe(done(), self._loop).result(30)


class TestKubernetes(EngineConformance):
    @pytest.fixture
    async def harness(self, tmp_path: Path) -> AsyncIterator[StandInHarness]:
        server = ProcessServer(StandInHarness.nodes)
        yield StandInHarness(server, await server.start(tmp_path))
        await server.stop()
        assert not server.processes, "a test left processes"
