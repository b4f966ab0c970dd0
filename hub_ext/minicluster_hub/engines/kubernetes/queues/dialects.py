"""What Kueue and Volcano call a gang that asks for its share of the cluster: pure.

Both have one object for a whole gang: Kueue a Workload, Volcano a PodGroup. It is granted or it waits, as a
whole. The pods come once it is granted, on nodes that our own plan chooses among the free ones.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from minicluster_hub.engines.capabilities import QueueRequest
from minicluster_hub.engines.kubernetes.api_client.client import Document

GROUP_NAME = "scheduling.k8s.io/group-name"


@dataclass(frozen=True, slots=True)
class GangRequest:
    """A gang's object as the queue has it.

    replicas: how many it granted; 0: none yet. taken_back: it was granted, and is not any more. reason: why
    it waits, in the queue's words.
    """

    name: str
    labels: Mapping[str, str]
    marks: Mapping[str, str]
    replicas: int
    taken_back: bool
    reason: str


class Dialect(ABC):
    """queue: the name of the queue in the namespace (Kueue: LocalQueue)."""

    name: str
    group: str
    """The API's group. A cluster without it has no such queue."""
    path: str
    """Where the namespace has these objects; {namespace} stands for it."""

    def __init__(self, queue: str, gpu_resource: str) -> None:
        self._queue = queue
        self._gpu_resource = gpu_resource

    @abstractmethod
    def document(self, metadata: Document, request: QueueRequest, *, gpus: bool) -> Document:
        """Return the object of a request."""

    @abstractmethod
    def read(self, raw: Mapping[str, Any]) -> GangRequest:
        """Return what the queue says of an object."""

    def pod_marks(self, name: str) -> dict[str, str]:
        """Return the annotations by which a pod belongs to a granted object."""
        return {}

    scheduler = ""
    """The scheduler of the pods; "": Kubernetes' own."""

    def _requests(self, request: QueueRequest, *, gpus: bool) -> dict[str, str]:
        """What one replica asks for."""
        slots = str(request.slots_per_replica)
        return {"cpu": "100m", "memory": "128Mi", **({self._gpu_resource: slots} if gpus else {})}


class Kueue(Dialect):
    """A Workload that we make ourselves: it holds the quota as long as it is there.

    With labels at the pods, Kueue would want to know a gang's size at its first pod, and a gang that grows
    would be another one.
    """

    name = "Kueue"
    group = "kueue.x-k8s.io"
    path = "/apis/kueue.x-k8s.io/v1beta1/namespaces/{namespace}/workloads"

    def document(self, metadata: Document, request: QueueRequest, *, gpus: bool) -> Document:
        container = {
            "name": "main",
            "image": "none",
            "resources": {"requests": self._requests(request, gpus=gpus)},
        }
        pods: Document = {
            "name": "main",
            "count": request.max_replicas,
            "template": {"spec": {"containers": [container], "restartPolicy": "Never"}},
        }
        if request.min_replicas < request.max_replicas:
            pods["minCount"] = request.min_replicas
        return {
            "apiVersion": "kueue.x-k8s.io/v1beta1",
            "kind": "Workload",
            "metadata": metadata,
            "spec": {"queueName": self._queue, "podSets": [pods]},
        }

    def read(self, raw: Mapping[str, Any]) -> GangRequest:
        status = raw.get("status") or {}
        conditions = {one["type"]: one for one in status.get("conditions") or ()}
        admitted, evicted = _is(conditions, "Admitted"), _is(conditions, "Evicted")
        asked = (raw.get("spec") or {}).get("podSets") or [{}]
        sets = (status.get("admission") or {}).get("podSetAssignments") or [{}]
        count = int(sets[0].get("count") or asked[0].get("count") or 0)
        waiting = conditions.get("Evicted" if evicted else "QuotaReserved") or {}
        return _gang(
            raw,
            replicas=count if admitted and not evicted else 0,
            taken_back=evicted,
            reason=str(waiting.get("message", "")),
        )


class Volcano(Dialect):
    """A PodGroup; its pods are bound by Volcano's scheduler, all or none."""

    name = "Volcano"
    group = "scheduling.volcano.sh"
    path = "/apis/scheduling.volcano.sh/v1beta1/namespaces/{namespace}/podgroups"
    scheduler = "volcano"

    def document(self, metadata: Document, request: QueueRequest, *, gpus: bool) -> Document:
        one = self._requests(request, gpus=gpus)
        least = {key: value for key, value in one.items() if key == self._gpu_resource}
        total = {key: str(int(value) * request.min_replicas) for key, value in least.items()}
        spec: Document = {"minMember": request.min_replicas, "queue": self._queue}
        if total:
            spec["minResources"] = total
        return {
            "apiVersion": "scheduling.volcano.sh/v1beta1",
            "kind": "PodGroup",
            "metadata": metadata,
            "spec": spec,
        }

    def read(self, raw: Mapping[str, Any]) -> GangRequest:
        status, spec = raw.get("status") or {}, raw.get("spec") or {}
        granted = status.get("phase") in ("Inqueue", "Running", "Unknown")
        messages = [str(one.get("message", "")) for one in status.get("conditions") or ()]
        return _gang(
            raw,
            replicas=int(spec.get("minMember") or 0) if granted else 0,
            taken_back=False,
            reason=messages[-1] if messages else "",
        )

    def pod_marks(self, name: str) -> dict[str, str]:
        return {GROUP_NAME: name}


def _is(conditions: Mapping[str, Mapping[str, Any]], kind: str) -> bool:
    return (conditions.get(kind) or {}).get("status") == "True"


def _gang(raw: Mapping[str, Any], *, replicas: int, taken_back: bool, reason: str) -> GangRequest:
    metadata = raw["metadata"]
    return GangRequest(
        name=str(metadata["name"]),
        labels=metadata.get("labels") or {},
        marks=metadata.get("annotations") or {},
        replicas=replicas,
        taken_back=taken_back,
        reason=reason,
    )


DIALECTS: Mapping[str, type[Dialect]] = {"kueue": Kueue, "volcano": Volcano}
