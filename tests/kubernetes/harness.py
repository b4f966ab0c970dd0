"""The engine `kubernetes` and its machines, as the suite of engines wants them."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

from docker.errors import APIError, NotFound

from minicluster_hub.engines.kubernetes.engine import KubernetesEngine
from minicluster_hub.engines.kubernetes.names import CLUSTER, CLUSTER_LABEL

from ..lab.machines import Node
from ..service.engines.conformance import EngineHarness
from .lab.cluster import JOBS, KubernetesCluster

_READ_ALL = "cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline | tr '\\0' '\\n'"
KINDS = (
    f"/api/v1/namespaces/{JOBS}/pods",
    f"/api/v1/namespaces/{JOBS}/secrets",
    f"/api/v1/namespaces/{JOBS}/services",
    f"/apis/networking.k8s.io/v1/namespaces/{JOBS}/networkpolicies",
)
Container = tuple[Node, str]


class KubernetesHarness(EngineHarness):
    """Its engines have the rights that the chart gives, and no others."""

    def __init__(self, cluster: KubernetesCluster, image: str) -> None:
        self._cluster = cluster
        self._image = image
        self._kubeconfig = str(cluster.service_kubeconfig())
        self.nodes = tuple(node.name for node in cluster.nodes)
        self.service_url = f"http://{cluster.lab.root_address}:1/"

    def make(self, **more: Any) -> KubernetesEngine:
        return KubernetesEngine(
            kubeconfig=self._kubeconfig, namespace=JOBS, image=self._image, verify_gpus=False, **more
        )

    def agents(self, task_id: int) -> int:
        return len(self._containers(task_id))

    def kill_agent(self, task_id: int) -> None:
        for node, container in self._containers(task_id):
            with node.docker() as client:
                client.kill(container)

    def reaches(self, task_id: int, host: str, port: str) -> bool:
        """Tell whether a task's pod can connect to an address."""
        node, container = self._containers(task_id)[0]
        program = f"import socket; socket.create_connection(('{host}', {port}), 2)"
        words = ["docker", "exec", container, "python", "-c", program]
        return node.run(words, check=False).returncode == 0

    def shown(self, task_id: int) -> str:
        pod = self._cluster.get(f"/api/v1/namespaces/{JOBS}/pods/{CLUSTER}-task-{task_id}")
        found = [json.dumps(pod)]
        for node, container in self._containers(task_id):
            found += [
                node.run(["docker", "inspect", container]).stdout,
                node.run(["docker", "exec", container, "sh", "-c", _READ_ALL]).stdout,
            ]
        return "\n".join(found)

    def lose(self, node: str) -> None:
        self._cluster.node(node).kill()

    def bring_back(self, node: str) -> None:
        self._cluster.bring_back(node)

    def leftovers(self) -> list[str]:
        found: list[str] = []
        for path in KINDS:
            listed = self._cluster.get(f"{path}?labelSelector={CLUSTER_LABEL}={CLUSTER}")["items"]
            found += [f"{path}/{one['metadata']['name']}" for one in listed]
        for node in self._running_nodes():
            with node.docker() as client:
                listed = client.containers(filters={"label": [f"io.kubernetes.pod.namespace={JOBS}"]})
                mine = [
                    one for one in listed if one["Labels"]["io.kubernetes.pod.name"].startswith(f"{CLUSTER}-")
                ]
                found += [f"{node.name}: {one['Names']}" for one in mine]
        return found

    def _running_nodes(self) -> list[Node]:
        return [node for node in self._cluster.lab.nodes if node.machine.is_on]

    def _containers(self, task_id: int) -> list[Container]:
        """Return the running containers of a task's pod, without the pod's sandbox."""
        wanted = [f"io.kubernetes.pod.name={CLUSTER}-task-{task_id}", "io.kubernetes.container.name=main"]
        found: list[Container] = []
        for node in self._running_nodes():
            with node.docker() as client, suppress(NotFound, APIError):
                found += [(node, one["Id"]) for one in client.containers(filters={"label": wanted})]
        return found
