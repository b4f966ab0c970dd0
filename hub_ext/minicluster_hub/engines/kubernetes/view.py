"""What the Kubernetes API says of pods, nodes and their leases, as records: pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from minicluster_hub.engines.kubernetes.names import GPUS_MARK, PREFIX, ROLE_LABEL, SLOTS_MARK

_SUFFIXES = {letter: Decimal(1000) ** (power - 3) for power, letter in enumerate(("n", "u", "m", ""))}
_SUFFIXES |= {letter: Decimal(1000) ** power for power, letter in enumerate("kMGTPE", 1)}
_SUFFIXES |= {f"{letter}i": Decimal(1024) ** power for power, letter in enumerate("KMGTPE", 1)}
_ENDED = ("Succeeded", "Failed")
_NODE_GONE = (
    "NodeLost", "NodeShutdown", "Shutdown", "Terminated", "Preempting", "Preempted", "ContainerStatusUnknown"
)  # fmt: skip
"""Reasons of a pod's end that are its node's. (`Evicted` is not: the pod took too much.)"""
_TEMPORARY_TAINTS = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
_CORDONED = "node.kubernetes.io/unschedulable"


@dataclass(frozen=True, slots=True)
class PodView:
    """A pod of ours.

    uid: another pod of the same name has another one. phase: Kubernetes' word. deleted: somebody had it
    deleted; its processes may still run. over: none of its processes runs any more, or will run again, as its
    node says. waiting, message: why it does not run yet, or does not run any more, in Kubernetes' words.
    """

    name: str
    uid: str
    labels: Mapping[str, str]
    marks: Mapping[str, str]
    node: str
    phase: str
    deleted: bool
    over: bool
    exit_code: int | None
    waiting: str
    message: str
    image: str
    address: str

    @property
    def role(self) -> str:
        return self.labels.get(ROLE_LABEL, "")

    @property
    def starting(self) -> bool:
        return self.phase == "Pending" and not self.deleted

    @property
    def running(self) -> bool:
        return self.phase == "Running" and not self.over

    @property
    def node_failed(self) -> bool:
        """Whether it ended because of its node, as far as the node, or the control plane, said so."""
        return self.waiting in _NODE_GONE

    def number(self, label: str) -> int | None:
        """Return the number in one of our labels; None if somebody else made the pod, without it."""
        value = self.labels.get(label, "")
        return int(value) if value.isdigit() else None

    @property
    def started(self) -> bool:
        """Whether a container of it ever ran, so that there may be a log."""
        return self.exit_code is not None or self.phase == "Running"


@dataclass(frozen=True, slots=True)
class KubernetesNode:
    """closed: why it takes no new pods; "": it does.

    gpus: what its device plugin offers now, without those that failed. cpus, memory_bytes: what pods may have
    of it together. images: the names of each image that it has, by tag and by digest.
    """

    name: str
    address: str
    ready: bool
    closed: str
    gpus: int
    cpus: float
    memory_bytes: int
    labels: Mapping[str, str]
    images: tuple[frozenset[str], ...] = ()


@dataclass(frozen=True, slots=True)
class LeaseView:
    """A lease: renewed at each change. holder, duration_s, renewed: as its holder wrote them."""

    holder: str
    duration_s: float
    renewed: str
    version: str


def pod_view(raw: Mapping[str, Any]) -> PodView:
    metadata, spec, status = raw["metadata"], raw.get("spec") or {}, raw.get("status") or {}
    containers = [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]
    ends = [one["state"]["terminated"] for one in containers if (one.get("state") or {}).get("terminated")]
    phase = str(status.get("phase") or "Pending")
    waiting, message = _why(status, containers, ends)
    restarts = spec.get("restartPolicy") == "Always" and not metadata.get("deletionTimestamp")
    return PodView(
        name=str(metadata["name"]),
        uid=str(metadata.get("uid", "")),
        labels=metadata.get("labels") or {},
        marks={
            key: value for key, value in (metadata.get("annotations") or {}).items() if key.startswith(PREFIX)
        },
        node=str(spec.get("nodeName", "")),
        phase=phase,
        deleted=bool(metadata.get("deletionTimestamp")),
        over=phase in _ENDED or (not restarts and bool(containers) and len(ends) == len(containers)),
        exit_code=int(ends[-1]["exitCode"]) if ends else None,
        waiting=waiting,
        message=message,
        image=str(((spec.get("containers") or [{}])[0]).get("image", "")),
        address=str(status.get("podIP", "")),
    )


def _why(
    status: Mapping[str, Any], containers: Iterable[Mapping[str, Any]], ends: Iterable[Mapping[str, Any]]
) -> tuple[str, str]:
    """Return why a pod does not run, as a word and a sentence; "" if there is no reason, or it runs."""
    if status.get("reason"):
        return str(status["reason"]), str(status.get("message", ""))
    for end in ends:
        if end.get("reason") not in (None, "Completed", "Error"):
            return str(end["reason"]), str(end.get("message", ""))
    for container in containers:
        waiting = (container.get("state") or {}).get("waiting") or {}
        if waiting.get("reason") not in (None, "ContainerCreating", "PodInitializing"):
            return str(waiting["reason"]), str(waiting.get("message", ""))
    for condition in status.get("conditions") or ():
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            return str(condition.get("reason", "")), str(condition.get("message", ""))
    return "", ""


def node_view(raw: Mapping[str, Any], gpu_resource: str, tolerated: frozenset[str]) -> KubernetesNode:
    """gpu_resource: what the device plugin calls a GPU. tolerated: keys of taints that our pods tolerate."""
    metadata, spec, status = raw["metadata"], raw.get("spec") or {}, raw.get("status") or {}
    conditions = {one["type"]: one["status"] for one in status.get("conditions") or ()}
    allocatable = status.get("allocatable") or {}
    addresses = {one["type"]: str(one["address"]) for one in status.get("addresses") or ()}
    return KubernetesNode(
        name=str(metadata["name"]),
        address=addresses.get("InternalIP") or addresses.get("Hostname") or str(metadata["name"]),
        ready=conditions.get("Ready") == "True",
        closed=_closed(spec, tolerated),
        gpus=int(quantity(allocatable.get(gpu_resource, "0"))),
        cpus=float(quantity(allocatable.get("cpu", "0"))),
        memory_bytes=int(quantity(allocatable.get("memory", "0"))),
        labels=metadata.get("labels") or {},
        images=tuple(frozenset(image.get("names") or ()) for image in status.get("images") or ()),
    )


def _closed(spec: Mapping[str, Any], tolerated: frozenset[str]) -> str:
    if spec.get("unschedulable"):
        return "an admin has cordoned it"
    for taint in spec.get("taints") or ():
        key = str(taint.get("key", ""))
        hard = taint.get("effect") in ("NoSchedule", "NoExecute")
        if hard and key not in tolerated and key not in (*_TEMPORARY_TAINTS, _CORDONED):
            return f"its taint {key} keeps jobs away"
    return ""


def lease_view(raw: Mapping[str, Any]) -> LeaseView:
    spec = raw.get("spec") or {}
    return LeaseView(
        holder=str(spec.get("holderIdentity") or ""),
        duration_s=float(spec.get("leaseDurationSeconds") or 40),
        renewed=str(spec.get("renewTime") or ""),
        version=str(raw["metadata"].get("resourceVersion", "")),
    )


def quantity(text: object) -> Decimal:
    """Return a quantity as Kubernetes writes it: "1500m" is 1.5, "16Gi" is 16 * 2**30, "1e3" is 1000."""
    digits = str(text).rstrip("numkKMGTPEi")
    return Decimal(digits) * _SUFFIXES[str(text)[len(digits) :]]


def slot_kinds(
    nodes: Sequence[KubernetesNode], held_gpus: Mapping[str, int] | None = None
) -> dict[str, tuple[str, ...]]:
    """Return the slots of each node: its GPUs; where no node has any, one CPU slot.

    A node without GPUs in a cluster that has some takes no ranks, unless its label says how many.
    held_gpus: how many GPU slots a node has at least, since tasks hold them. While its device plugin
    restarts, it offers none.
    """
    held = held_gpus or {}
    gpus = {node.name: max(node.gpus, held.get(node.name, 0)) for node in nodes}
    any_gpu = any(gpus.values())
    return {node.name: ("gpu",) * gpus[node.name] or _cpu_slots(node, any_gpu) for node in nodes}


def _cpu_slots(node: KubernetesNode, any_gpu: bool) -> tuple[str, ...]:
    value = node.labels.get(SLOTS_MARK, "")
    count = int(value) if value.isdigit() else (0 if any_gpu else 1)
    return ("cpu",) * count


def held_gpus(pods: Iterable[PodView]) -> dict[str, int]:
    """Return, by node, how many GPU slots the tasks' pods on it need: slots are numbered from 0."""
    found: dict[str, int] = {}
    for pod in pods:
        if pod.marks.get(GPUS_MARK, "0") != "0" and pod.marks.get(SLOTS_MARK):
            most = 1 + max(int(number) for number in pod.marks[SLOTS_MARK].split(","))
            node = pod.node
            found[node] = max(most, found.get(node, 0))
    return found
