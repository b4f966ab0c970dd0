"""The probe's services and what they are told, as data. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from minicluster_hub.cluster.doctor.probe import HOST_BIN, NODE_ENV, TASK_ENV
from minicluster_hub.cluster.doctor.report import PROBE_PORT, Door, Peer, Task
from minicluster_hub.cluster.plan.drafts import AGENTS_PORT, CACHE_PORT, REGISTRY_PORT
from minicluster_hub.cluster.registry.relay import CACHE_DOOR, HOST, REGISTRY_DOOR
from minicluster_hub.engines.swarm.names import CLUSTER, labels
from minicluster_hub.engines.swarm.view import SwarmNode

ROLE = "doctor"
NAME, OVERLAY_NAME = f"{CLUSTER}_doctor", f"{CLUSTER}_doctor_overlay"
SHM_BYTES = 1 << 30
_MANAGER_PORT, _GOSSIP_PORT = 2377, 7946
_COMMAND = ["python", "-P", "-m", "minicluster_hub.cluster.doctor.probe"]
_S = 1_000_000_000


def task_for(nodes: Sequence[SwarmNode], token: str, doors: Sequence[Door]) -> Task:
    """Return what the probes on these nodes are asked."""
    peers = tuple(Peer(id=node.id, name=node.name, address=node.address) for node in nodes)
    return Task(
        token=token,
        port=PROBE_PORT,
        peers=peers,
        doors=tuple(doors),
        closed=tuple(closed_doors(nodes)),
        shm_bytes=SHM_BYTES,
    )


def swarm_doors(nodes: Sequence[SwarmNode]) -> list[Door]:
    """Return the Swarm's TCP ports of these nodes."""
    group = "every Swarm port"
    gossip = [
        Door(what=f"{node.name}'s Swarm port", target=f"tcp://{_host(node)}:{_GOSSIP_PORT}", group=group)
        for node in nodes
    ]
    managers = [
        Door(what=f"manager {node.name}", target=f"tcp://{_host(node)}:{_MANAGER_PORT}", group=group)
        for node in nodes
        if node.manager
    ]
    return gossip + managers


def closed_doors(nodes: Sequence[SwarmNode]) -> list[Door]:
    """Return what of these nodes a user's container must not reach."""
    inner = [("registry", REGISTRY_PORT), ("cache", CACHE_PORT)]
    registry = [
        Door(what=f"the {what} on {node.name}", target=f"tcp://{_host(node)}:{port}")
        for node in nodes
        for what, port in inner
        if node.manager
    ]
    return [*swarm_doors(nodes), *registry]


def platform_doors(manager: SwarmNode, roles: set[str], hub_port: int, *, hub_tls: bool) -> list[Door]:
    """Return where the platform's services have to answer on or to each node."""
    scheme = "https" if hub_tls else "http"
    targets = {
        "registry": f"http://{HOST}:{REGISTRY_DOOR}/v2/",
        "cache": f"http://{HOST}:{CACHE_DOOR}/v2/",
        "service": f"https://{_host(manager)}:{AGENTS_PORT}/services/{CLUSTER}/health",
        "hub": f"{scheme}://{_host(manager)}:{hub_port}/hub/health",
    }
    return [Door(what=role, target=target) for role, target in targets.items() if role in roles]


def host_service(task: Task, image: str) -> dict[str, Any]:
    """Return the arguments of create_service for the probe on each node's own network."""
    mounts = [
        {
            "Type": "tmpfs",
            "Target": "/dev/shm",  # noqa: S108
            "TmpfsOptions": {"SizeBytes": task.shm_bytes, "Mode": 0o1777},
        },
        {"Type": "bind", "Source": "/usr/bin", "Target": HOST_BIN, "ReadOnly": True},
    ]
    gpus = ["NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=utility"]
    return _service(NAME, task, image, "host", mounts, gpus)


def overlay_service(task: Task, image: str) -> dict[str, Any]:
    """Return the arguments of create_service for the probe on the cluster's overlay network."""
    told = task.model_copy(update={"overlay_name": OVERLAY_NAME})
    return _service(OVERLAY_NAME, told, image, CLUSTER, [], ["NVIDIA_VISIBLE_DEVICES=void"])


def _service(
    name: str, task: Task, image: str, network: str, mounts: list[dict[str, Any]], environment: list[str]
) -> dict[str, Any]:
    container = {
        "Image": image,
        "Command": _COMMAND,
        "Env": [f"{TASK_ENV}={task.model_dump_json()}", f"{NODE_ENV}={{{{.Node.ID}}}}", *environment],
        "User": "1000",
        "Labels": labels(ROLE, name=name),
        "Init": True,
        "StopGracePeriod": _S,
        "CapabilityDrop": ["ALL"],
        "Privileges": {"NoNewPrivileges": True},
        "Mounts": mounts,
    }
    return {
        "name": name,
        "labels": labels(ROLE),
        "mode": {"GlobalJob": {}},
        "endpoint_spec": {"Mode": "dnsrr"},
        "task_template": {
            "ContainerSpec": container,
            "RestartPolicy": {"Condition": "none"},
            "Networks": [{"Target": network}],
            "LogDriver": {"Name": "json-file", "Options": {"max-size": "1m"}},
        },
    }


def _host(node: SwarmNode) -> str:
    return f"[{node.address}]" if ":" in node.address else node.address
