"""A task as Kubernetes' API wants it: pure functions from a launch to plain data, sent by the engine."""

from __future__ import annotations

import base64
import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from minicluster_hub.engines.base import TaskLaunch
from minicluster_hub.engines.kubernetes import pods
from minicluster_hub.engines.kubernetes.names import (
    GANG,
    GPUS_MARK,
    OWNER_MARK,
    SLOTS_MARK,
    SPEC_MARK,
    TASK,
    Names,
    owner_label,
    token_key,
)
from minicluster_hub.engines.kubernetes.pods import Document, PodParts, PodSettings
from minicluster_hub.engines.kubernetes.view import KubernetesNode

AGENT_COMMAND = ["python", "-P", "-m", "minicluster.runtime.agent"]
SCRATCH = "/tmp/minicluster"  # noqa: S108 - in the task's own container
DATA_LINKS, DATA_CACHE = "/data", "/cluster-data"
_LINKS_BYTES = 1 << 20
_MOST_RESERVED = 4
"""A node's reserve is at most this part of it, so that a small machine can work as well."""
METADATA_SERVICE = "169.254.169.254/32"
"""Where clouds tell each machine its own credentials."""
_SERVICE, _NAME_SERVERS = (
    {"namespaceSelector": {}, "podSelector": {"matchLabels": labels}}
    for labels in (
        {"app.kubernetes.io/name": "minicluster", "app.kubernetes.io/component": "service"},
        {"k8s-app": "kube-dns"},
    )
)
"""The pods of the job service, as the chart labels them, and of the cluster's name servers."""


@dataclass(frozen=True, slots=True)
class TaskSettings:
    """What all tasks of a cluster have in common.

    gpu_resource: what the device plugin calls a GPU. verify_gpus: the agent counts the GPUs that it sees.
    memory_per_slot_bytes: 0: a slot's share of what its node has but for the reserve.
    reserve_memory_bytes, reserve_cpus: of each node, for others' pods. request_share: the part of its limits
    that a task requests. disk_bytes: most that a task may write outside of volumes; 0: no limit.
    data_cache: whether tasks have their node's cache of data sets. data_claim: the claim with the cache of
    all nodes; "": each node has its own.
    blocked_networks: networks (CIDR) that jobs do not reach. scheduler: of tasks; "": Kubernetes' own.
    """

    pods: PodSettings
    shm_bytes: int = 2 * 1024**3
    gpu_resource: str = "nvidia.com/gpu"
    verify_gpus: bool = True
    stop_grace_s: float = 1.0
    memory_per_slot_bytes: int = 0
    reserve_memory_bytes: int = 2 * 1024**3
    reserve_cpus: float = 0.5
    request_share: float = 0.0
    disk_bytes: int = 0
    data_cache: bool = False
    data_claim: str = ""
    blocked_networks: tuple[str, ...] = (METADATA_SERVICE,)
    scheduler: str = ""

    @property
    def names(self) -> Names:
        return self.pods.names


def secret_spec(launch: TaskLaunch, names: Names) -> Document:
    """Return the part of its gang's Secret that is a task's: its token, under a key of its own."""
    token = base64.b64encode(launch.token.encode()).decode()
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {
            "name": names.gang(launch.gang_id),
            "labels": names.labels(GANG, gang=launch.gang_id),
        },
        "data": {token_key(launch.task_id): token},
    }


def network_policy_spec(gang_id: int, settings: TaskSettings, *, serves: bool = False) -> Document:
    """Return the walls around a gang: nobody else reaches its pods, and they do not reach blocked networks.

    serves: the job service reaches them, too: they answer requests to a model. A network plugin that knows no
    NetworkPolicy ignores it.
    """
    names, blocked = settings.names, settings.blocked_networks
    own: Document = {"podSelector": {"matchLabels": names.gang_labels(gang_id)}}
    v4 = _all_but("0.0.0.0/0", [one for one in blocked if ":" not in one])
    v6 = _all_but("::/0", [one for one in blocked if ":" in one])
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": names.gang(gang_id), "labels": names.labels(GANG, gang=gang_id)},
        "spec": {
            "podSelector": own["podSelector"],
            "policyTypes": ["Ingress", "Egress"],
            "ingress": [{"from": [own, *([_SERVICE] if serves else [])]}],
            # Plugins differ in whether a block of addresses means pods, too: those meant are named.
            "egress": [{"to": [own, _SERVICE, _NAME_SERVERS]}, {"to": [v4, v6]}],
        },
    }


def _all_but(network: str, blocked: Sequence[str]) -> Document:
    return {"ipBlock": {"cidr": network, **({"except": list(blocked)} if blocked else {})}}


def task_spec(
    launch: TaskLaunch,
    node: KubernetesNode,
    slot_kinds: tuple[str, ...],
    settings: TaskSettings,
    queue_marks: Mapping[str, str] | None = None,
) -> Document:
    """Return a task's pod.

    slot_kinds: of all slots of the node; those of the launch that are GPUs are asked of the device plugin.
    queue_marks: annotations by which the pod belongs to what another queue granted.
    """
    names, gpus = settings.names, _gpus(launch, slot_kinds)
    memory_bytes = task_memory_bytes(launch, node, slot_kinds, settings)
    labels = names.labels(
        TASK,
        owner=owner_label(launch.owner),
        job=launch.job_id,
        attempt=launch.attempt_id,
        gang=launch.gang_id,
        task=launch.task_id,
        epoch=launch.epoch,
    )
    marks = {
        OWNER_MARK: launch.owner,
        SLOTS_MARK: ",".join(map(str, launch.slots)),
        GPUS_MARK: str(gpus),
        SPEC_MARK: hashlib.sha256(launch.token.encode()).hexdigest()[:16],
    }
    parts = PodParts(
        name=names.task(launch.task_id),
        labels=labels,
        marks=marks | (queue_marks or {}),
        nodes=(node.name,),
        grace_s=max(1, math.ceil(settings.stop_grace_s)),
        volumes=_volumes(launch, node, memory_bytes, settings),
        container={
            "image": launch.image or settings.pods.image,
            "command": AGENT_COMMAND,
            "env": pods.environment(
                _environment(launch, slot_kinds, settings), MINICLUSTER_ADDRESS="status.podIP"
            ),
            "resources": resources(memory_bytes, gpus, node, settings),
        },
        more=_more(launch, gpus, settings),
    )
    return pods.pod(parts, settings.pods)


def _more(launch: TaskLaunch, gpus: int, settings: TaskSettings) -> Document:
    hostname = {"hostname": f"task-{launch.task_id}"}
    runtime = settings.pods.runtime_class
    scheduler = {"schedulerName": settings.scheduler} if settings.scheduler else {}
    return hostname | scheduler | ({"runtimeClassName": runtime} if runtime and gpus else {})


def _volumes(
    launch: TaskLaunch, node: KubernetesNode, memory_bytes: int, settings: TaskSettings
) -> list[Document]:
    asked_bytes = launch.shm_bytes or settings.shm_bytes
    # Shared memory is part of the container's, and the kernel cannot free it by ending a process.
    shared_bytes = min(asked_bytes, memory_bytes // 2) if memory_bytes else asked_bytes
    volumes = [
        pods.token_volume(settings.names.gang(launch.gang_id), token_key(launch.task_id)),
        pods.memory_volume("shm", "/dev/shm", shared_bytes),  # noqa: S108
        pods.memory_volume("links", DATA_LINKS, _LINKS_BYTES),
    ]
    if settings.data_cache:
        claim = settings.data_claim or settings.names.data_agent(node.name)
        volumes.append(pods.claim_volume("data", claim, DATA_CACHE, read_only=True))
    return volumes


def _gpus(launch: TaskLaunch, slot_kinds: tuple[str, ...]) -> int:
    return sum(slot_kinds[slot] == "gpu" for slot in launch.slots)


def _environment(launch: TaskLaunch, slot_kinds: tuple[str, ...], settings: TaskSettings) -> dict[str, str]:
    gpus = _gpus(launch, slot_kinds)
    environment = {
        "MINICLUSTER_SERVICE_URL": ",".join(launch.service_urls),
        **pods.token_variable(),
        "MINICLUSTER_NODE": launch.node,
        "MINICLUSTER_SLOTS": ",".join(map(str, launch.slots)),
        "MINICLUSTER_TASK": str(launch.task_id),
        "MINICLUSTER_SCRATCH": SCRATCH,
        "MINICLUSTER_GPUS": str(gpus),
        "MINICLUSTER_NODE_SLOTS": str(len(slot_kinds)),
        "MINICLUSTER_DATA_SETS": DATA_LINKS,
        "MINICLUSTER_DATA_CACHE": DATA_CACHE,
        # The device plugin chooses which GPUs they are, and tells nobody else.
        "MINICLUSTER_VERIFY_GPUS": "count" if settings.verify_gpus else "never",
        **pods.service_ca(settings.pods),
    }
    return environment if gpus else environment | pods.no_gpu()


# How much of its node a task may take. Kubernetes' own default is no limit: one list that grows would take
# everybody's work along.


def task_memory_bytes(
    launch: TaskLaunch, node: KubernetesNode, slot_kinds: tuple[str, ...], settings: TaskSettings
) -> int:
    """Return how much memory a task may take: so much for each of its slots; 0: the node does not tell."""
    reserve_bytes = min(settings.reserve_memory_bytes, node.memory_bytes // _MOST_RESERVED)
    most_bytes, slots = node.memory_bytes - reserve_bytes, len(launch.slots)
    share_bytes = most_bytes * slots // max(1, len(slot_kinds))
    wanted_bytes = settings.memory_per_slot_bytes * slots
    return min(wanted_bytes, most_bytes) if wanted_bytes and most_bytes else wanted_bytes or share_bytes


def resources(memory_bytes: int, gpus: int, node: KubernetesNode, settings: TaskSettings) -> Document:
    """Return a container's requests and limits. What is 0 has none.

    A limit without a request would be requested as a whole, and the second task of a node would find no room:
    so CPU and memory have requests of their own.
    """
    cpus = node.cpus - min(settings.reserve_cpus, node.cpus / _MOST_RESERVED)
    limits: dict[str, str] = {}
    requests: dict[str, str] = {"cpu": "100m", "memory": "128Mi"}
    if memory_bytes:
        limits["memory"] = str(memory_bytes)
        requests["memory"] = str(
            min(memory_bytes, max(128 << 20, int(memory_bytes * settings.request_share)))
        )
    if cpus:
        limits["cpu"] = f"{int(cpus * 1000)}m"
        requests["cpu"] = f"{max(100, int(cpus * 1000 * settings.request_share))}m"
    if settings.disk_bytes:
        limits["ephemeral-storage"], requests["ephemeral-storage"] = str(settings.disk_bytes), "1Mi"
    if gpus:
        limits[settings.gpu_resource] = requests[settings.gpu_resource] = str(gpus)
    return {"limits": limits, "requests": requests}
