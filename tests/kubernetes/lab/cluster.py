"""A Kubernetes cluster on the lab: three nodes, a namespace for jobs, and the rights that the chart gives."""

from __future__ import annotations

import re
import tempfile
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any

import httpx
import yaml

from ...lab.machines import Lab
from ...lab.machines.images import BASE_IMAGE, build
from ...lab.machines.processes import run, wait_for
from .build import programs
from .control_plane import ControlPlane
from .nodes import PAUSE_IMAGE, KubernetesNode, forget_folders

JOBS, PLATFORM = "jobs", "platform"
"""The namespaces of jobs and of the job service."""
GPUS_PER_NODE = 2
_TREE = Path(__file__).resolve().parents[3]
_CHART = _TREE / "hub_ext" / "minicluster_hub" / "engines" / "kubernetes" / "chart"
_PAUSE = f"""FROM {BASE_IMAGE}
CMD ["bash", "-c", "trap exit TERM INT; sleep infinity & wait"]
"""


class KubernetesCluster:
    """As a context manager, it exists only inside of the `with` block."""

    def __init__(self, images: Sequence[str]) -> None:
        """images: of the build engine, which all nodes have."""
        self._images = [*images, build_pause()]
        self._programs = programs()
        self.lab: Lab
        self.plane: ControlPlane
        self.nodes: tuple[KubernetesNode, ...] = ()

    def __enter__(self) -> KubernetesCluster:
        self.lab = Lab.fresh(images=self._images, pod_networks=pod_networks())
        try:
            self._start()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for node in self.nodes:
            node.kill()
        if hasattr(self, "plane"):
            self.plane.stop()
        self.lab.remove()
        forget_folders()

    def _start(self) -> None:
        for image in self._images:
            self.lab.load(image)
        self.plane = ControlPlane(self._programs, self.lab.data / "kubernetes", self.lab.root_address)
        self.plane.start()
        self.nodes = tuple(self._node(number) for number in range(len(self.lab.nodes)))
        for node in self.nodes:
            run("ip", "route", "replace", node.pods, "via", node.node.address)
            node.start()
        for node in self.nodes:
            wait_for(lambda node=node: self.is_ready(node.name), f"the kubelet of {node.name}", 90, 0.2)
        self.offer_gpus()
        self.make_namespaces()

    def _node(self, number: int) -> KubernetesNode:
        networks = pod_networks()
        node = self.lab.nodes[number]
        others = {
            other.address: networks[index] for index, other in enumerate(self.lab.nodes) if other is not node
        }
        return KubernetesNode(node, networks[number], others, self.plane, self._programs)

    def node(self, name: str) -> KubernetesNode:
        return next(node for node in self.nodes if node.name == name)

    # --- the API --------------------------------------------------------------------------------

    def get(self, path: str) -> dict[str, Any]:
        return self._ask("GET", path)

    def post(self, path: str, document: dict[str, Any]) -> dict[str, Any]:
        """Create an object; one that is there already is fine."""
        return self._ask("POST", path, document, fine=(409,))

    def delete(self, path: str) -> None:
        """Delete an object, or all that a path lists; one that is gone is fine."""
        self._ask("DELETE", path, fine=(404,))

    def patch(self, path: str, document: dict[str, Any]) -> dict[str, Any]:
        return self._ask("PATCH", path, document)

    def _ask(
        self, method: str, path: str, document: dict[str, Any] | None = None, fine: Sequence[int] = ()
    ) -> dict[str, Any]:
        kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
        with self.plane.client() as client:
            answer = client.request(method, path, json=document, headers={"Content-Type": kind})
        if answer.status_code >= 400 and answer.status_code not in fine:
            raise httpx.HTTPError(f"{method} {path}: {answer.status_code} {answer.text[:500]}")
        return answer.json()

    def is_ready(self, node: str, since: float = 0.0) -> bool:
        """Tell whether a node's kubelet called it ready, after this moment in seconds since the epoch."""
        listed = self.get("/api/v1/nodes")["items"]
        mine = [one for one in listed if one["metadata"]["name"] == node]
        conditions = mine[0]["status"].get("conditions", []) if mine else []
        return any(
            one["type"] == "Ready"
            and one["status"] == "True"
            and datetime.fromisoformat(one["lastHeartbeatTime"]).timestamp() > since
            for one in conditions
        )

    def bring_back(self, node: str) -> None:
        """Switch a node on again that lost its power."""
        began = time.time()
        self.node(node).power_on()
        # The heartbeat comes after the kubelet took its GPUs away: it finds no device plugin.
        wait_for(lambda: self.is_ready(node, since=began), f"the kubelet of {node} to be back", 90, 0.2)
        self.offer_gpus()

    def offer_gpus(self, count: int = GPUS_PER_NODE) -> None:
        """Have each node offer GPUs that are not there, as a device plugin does."""
        for node in self.nodes:
            capacity = {"status": {"capacity": {"nvidia.com/gpu": str(count)}}}
            self.patch(f"/api/v1/nodes/{node.name}/status", capacity)
            wait_for(
                lambda node=node: self._allocatable(node.name) == count, f"the GPUs of {node.name}", 60, 0.2
            )

    def _allocatable(self, node: str) -> int:
        status = self.get(f"/api/v1/nodes/{node}")["status"]
        return int(status.get("allocatable", {}).get("nvidia.com/gpu", 0))

    def make_namespaces(self) -> None:
        for name in (JOBS, PLATFORM):
            self.post("/api/v1/namespaces", {"metadata": {"name": name}})
        accounts = f"/api/v1/namespaces/{JOBS}/serviceaccounts"
        # Without the account `default` no pod is accepted; the controller manager makes it in a moment.
        wait_for(lambda: self.get(accounts)["items"], "the namespace of jobs to be complete", 60, 0.1)
        for document in chart_rights():
            self.post(path_of(document), document)

    def service_kubeconfig(self) -> Path:
        """Return a kubeconfig with the rights that the chart gives the job service, and no others."""
        path = f"/api/v1/namespaces/{PLATFORM}/serviceaccounts/minicluster/token"
        request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
        token = self.post(path, request)["status"]["token"]
        return self.plane.write_kubeconfig("job-service", {"token": token})


def pod_networks() -> list[str]:
    """Return the networks of the nodes' pods. Only one such cluster is made at a time."""
    return [f"10.112.{number}.0/24" for number in (1, 2, 3)]


def build_pause() -> str:
    """Build the image of pods' sandboxes; return its name."""
    with tempfile.TemporaryDirectory() as context:
        dockerfile = Path(context, "Dockerfile")
        dockerfile.write_text(_PAUSE)
        build(dockerfile, PAUSE_IMAGE, Path(context), {})
    return PAUSE_IMAGE


def chart_rights() -> list[dict[str, Any]]:
    """Return the roles of the chart's template, with our namespaces: it has no other variables."""
    text = (_CHART / "templates" / "rbac.yaml").read_text()
    text = re.sub(r"\n +labels:\n +\{\{- include .*", "", text)
    text = text.replace('{{ include "minicluster.jobsNamespace" . }}', JOBS)
    text = text.replace("{{ .Release.Namespace }}", PLATFORM)
    assert "{{" not in text, "the template has a variable that is not known here"
    return [document for document in yaml.safe_load_all(text) if document]


def path_of(document: dict[str, Any]) -> str:
    """Return where an object is created."""
    version, kind = document["apiVersion"], document["kind"].lower()
    top = f"/api/{version}" if "/" not in version else f"/apis/{version}"
    namespace = document["metadata"].get("namespace")
    plural = f"{kind[:-1]}ies" if kind.endswith("policy") else f"{kind}s"
    return f"{top}/namespaces/{namespace}/{plural}" if namespace else f"{top}/{plural}"
