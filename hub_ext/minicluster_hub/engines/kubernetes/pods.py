"""What the pods that Minicluster makes have in common, as Kubernetes wants it: pure.

They keep the Pod Security Standard `restricted`: a namespace may enforce it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from minicluster_hub.engines.kubernetes.names import Names

Document = dict[str, Any]
USER_ID = 1000
TOKEN_FOLDER, TOKEN_FILE = "/run/minicluster", "token"
ANY_NODE: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PodSettings:
    """What all pods of a cluster have in common.

    image: of tasks whose launch names none, and of the platform's pods. tolerations: as in a pod; of nodes
    with taints that are meant for jobs. pull_secrets: names of Secrets with a registry's credentials.
    runtime_class: of pods with GPUs, where the nodes' default runtime does not show them.
    service_ca: the certificate, as PEM text, of the authority by which agents know the job service.
    """

    names: Names
    image: str
    tolerations: tuple[Mapping[str, Any], ...] = ()
    pull_secrets: tuple[str, ...] = ()
    runtime_class: str = ""
    service_ca: str = ""


@dataclass(frozen=True, slots=True)
class PodParts:
    """What is special about a pod.

    container: more of its only container: command, env, resources. nodes: where it may run; empty: anywhere.
    volumes: as in a pod, each with the key "mount", the volumeMount without its name.
    """

    name: str
    labels: Mapping[str, str]
    container: Mapping[str, Any]
    marks: Mapping[str, str] = field(default_factory=dict[str, str])
    nodes: tuple[str, ...] = ANY_NODE
    volumes: Sequence[Mapping[str, Any]] = ()
    restart: str = "Never"
    grace_s: int = 1
    more: Mapping[str, Any] = field(default_factory=dict[str, Any])


def pod(parts: PodParts, settings: PodSettings) -> Document:
    """Return a pod of one container without rights, and without a token for the Kubernetes API."""
    spec: Document = {
        "restartPolicy": parts.restart,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": parts.grace_s,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER_ID,
            "runAsGroup": USER_ID,
            "fsGroup": USER_ID,
            # Else each start would walk through the whole cache of data sets.
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [_container(parts)],
        "volumes": [_without_mount(volume) for volume in parts.volumes],
        **({"affinity": on_nodes(parts.nodes)} if parts.nodes else {}),
        **({"tolerations": [dict(one) for one in settings.tolerations]} if settings.tolerations else {}),
        **(
            {"imagePullSecrets": [{"name": name} for name in settings.pull_secrets]}
            if settings.pull_secrets
            else {}
        ),
        **parts.more,
    }
    metadata: Document = {"name": parts.name, "labels": dict(parts.labels)}
    if parts.marks:
        metadata["annotations"] = dict(parts.marks)
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def _container(parts: PodParts) -> Document:
    return {
        "name": "main",
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        "volumeMounts": [{"name": volume["name"], **volume["mount"]} for volume in parts.volumes],
        **parts.container,
    }


def _without_mount(volume: Mapping[str, Any]) -> Document:
    return {key: value for key, value in volume.items() if key != "mount"}


def on_nodes(names: Sequence[str]) -> Document:
    """Return the affinity of a pod that may run on these nodes only.

    `nodeName` would do, too, and would pass by the scheduler: it checks whether the node has room, and keeps
    two schedulers from giving the same GPU away.
    """
    field_term = {"key": "metadata.name", "operator": "In", "values": list(names)}
    terms = [{"matchFields": [field_term]}]
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}


def environment(values: Mapping[str, str], **fields: str) -> list[Document]:
    """Return variables as a container has them. fields: variables with the path of a pod's own field."""
    named: list[Document] = [{"name": name, "value": value} for name, value in values.items()]
    own = ({"fieldRef": {"fieldPath": path}} for path in fields.values())
    return named + [{"name": name, "valueFrom": source} for name, source in zip(fields, own, strict=True)]


def token_volume(secret: str, key: str) -> Document:
    """Return the volume that shows a pod one key of a Secret, as the file of its token.

    Its files belong to root; the pod's group, which is the user's own, may read them.
    """
    items = [{"key": key, "path": TOKEN_FILE, "mode": 0o440}]
    mount = {"mountPath": TOKEN_FOLDER, "readOnly": True}
    return {"name": "token", "secret": {"secretName": secret, "items": items}, "mount": mount}


def token_variable() -> dict[str, str]:
    return {"MINICLUSTER_TOKEN_FILE": f"{TOKEN_FOLDER}/{TOKEN_FILE}"}


def memory_volume(name: str, path: str, size_bytes: int) -> Document:
    """Return a folder in memory; what lies in it counts as the container's memory."""
    return {
        "name": name,
        "emptyDir": {"medium": "Memory", "sizeLimit": str(size_bytes)},
        "mount": {"mountPath": path},
    }


def claim_volume(name: str, claim: str, path: str, *, read_only: bool) -> Document:
    """Return a volume of a claim (PersistentVolumeClaim)."""
    source = {"claimName": claim, **({"readOnly": True} if read_only else {})}
    mount = {"mountPath": path, **({"readOnly": True} if read_only else {})}
    return {"name": name, "persistentVolumeClaim": source, "mount": mount}


def no_gpu() -> dict[str, str]:
    """Return the variable that keeps NVIDIA's runtime from showing a node's GPUs to a pod that has none."""
    return {"NVIDIA_VISIBLE_DEVICES": "void"}


def service_ca(settings: PodSettings) -> dict[str, str]:
    """Return what tells an agent how it knows the job service."""
    return {"MINICLUSTER_SERVICE_CA": settings.service_ca} if settings.service_ca else {}


def toleration(taint: str) -> Document:
    """Return the toleration of a taint: KEY, KEY=VALUE or KEY=VALUE:EFFECT."""
    pair, _, effect = taint.partition(":")
    key, _, value = pair.partition("=")
    matched: Document = {"operator": "Equal", "value": value} if value else {"operator": "Exists"}
    return {"key": key, **matched, **({"effect": effect} if effect else {})}
