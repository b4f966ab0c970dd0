"""The probes' services and their request, as data. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from minicluster_hub.cluster.doctor.checks.node import HOST_BIN, SHM_BYTES
from minicluster_hub.cluster.doctor.facts import ClusterFacts
from minicluster_hub.cluster.doctor.messages import PROBE_PORT, Peer, ProbeTask, Target
from minicluster_hub.cluster.doctor.probe import NODE_ENV, TASK_ENV
from minicluster_hub.cluster.plan.choices import SERVICE_PREFIX, TLS_NONE
from minicluster_hub.cluster.plan.drafts import AGENTS_PORT, CACHE_PORT, REGISTRY_PORT, host_of
from minicluster_hub.cluster.registry.relay import HOST, RELAY_CACHE_PORT, RELAY_REGISTRY_PORT
from minicluster_hub.engines.swarm.names import CLUSTER, labels
from minicluster_hub.engines.swarm.view import SwarmNode

ROLE = "doctor"
NAME, OVERLAY_NAME = f"{CLUSTER}_doctor", f"{CLUSTER}_doctor_overlay"
_MANAGER_PORT, _GOSSIP_PORT = 2377, 7946
_COMMAND = ["python", "-P", "-m", "minicluster_hub.cluster.doctor.probe"]
_S = 1_000_000_000


def task_for(facts: ClusterFacts, nodes: Sequence[SwarmNode], token: str) -> ProbeTask:
    """Return the request to the probes on these nodes."""
    swarm_ports = _swarm_ports(nodes)
    registries = [
        Target(what=f"the {what} on {node.name}", target=f"tcp://{host_of(node.address)}:{port}")
        for node in nodes
        for what, port in (("registry", REGISTRY_PORT), ("cache", CACHE_PORT))
        if node.manager
    ]
    return ProbeTask(
        token=token,
        port=PROBE_PORT,
        peers=tuple(Peer(id=node.id, name=node.name, address=node.address) for node in nodes),
        targets=(*swarm_ports, *_platform_targets(facts)),
        closed=(*swarm_ports, *registries),
        collector=_collector(facts, nodes),
    )


def _collector(facts: ClusterFacts, nodes: Sequence[SwarmNode]) -> str:
    """Return this machine, or the leader, or any node, whichever runs a probe."""
    ids = [node.id for node in nodes]
    wanted = (facts.swarm.node_id, facts.swarm.leader_id, *ids)
    return next((one for one in wanted if one in ids), "")


def _swarm_ports(nodes: Sequence[SwarmNode]) -> list[Target]:
    """Return the Swarm's TCP ports of these nodes."""
    gossip = [(f"{node.name}'s Swarm port", node, _GOSSIP_PORT) for node in nodes]
    managers = [(f"manager {node.name}", node, _MANAGER_PORT) for node in nodes if node.manager]
    return [
        Target(what=what, target=f"tcp://{host_of(node.address)}:{port}", group="every Swarm port")
        for what, node, port in (*gossip, *managers)
    ]


def _platform_targets(facts: ClusterFacts) -> list[Target]:
    """Return the addresses of the platform's services, which must answer to each node."""
    if facts.record is None:
        return []
    choices, entries = facts.record.choices, {facts.record.manager_id}
    if choices.shared_data:
        entries = {node for service in facts.services if service.role == "proxy" for node in service.nodes}
    host = next((host_of(node.address) for node in facts.nodes if node.id in entries), "")
    if not host:
        return []
    scheme = "http" if choices.tls == TLS_NONE else "https"
    targets = {
        "registry": f"http://{HOST}:{RELAY_REGISTRY_PORT}/v2/",
        "cache": f"http://{HOST}:{RELAY_CACHE_PORT}/v2/",
        "service": f"https://{host}:{AGENTS_PORT}{SERVICE_PREFIX}health",
        "hub": f"{scheme}://{host}:{choices.port}/hub/health",
    }
    roles = {service.role for service in facts.services}
    return [Target(what=role, target=target) for role, target in targets.items() if role in roles]


def host_service(task: ProbeTask, image: str) -> dict[str, Any]:
    """Return the arguments of create_service for the probe on each node's own network."""
    mounts = [
        {
            "Type": "tmpfs",
            "Target": "/dev/shm",  # noqa: S108
            "TmpfsOptions": {"SizeBytes": SHM_BYTES, "Mode": 0o1777},
        },
        {"Type": "bind", "Source": "/usr/bin", "Target": HOST_BIN, "ReadOnly": True},
    ]
    gpus = ["NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=compute,utility"]
    return _service(NAME, task, image, "host", mounts, gpus)


def overlay_service(task: ProbeTask, image: str) -> dict[str, Any]:
    """Return the arguments of create_service for the probe on the cluster's overlay network."""
    on_overlay = task.model_copy(update={"overlay_name": OVERLAY_NAME})
    return _service(OVERLAY_NAME, on_overlay, image, CLUSTER, [], ["NVIDIA_VISIBLE_DEVICES=void"])


def _service(
    name: str, task: ProbeTask, image: str, network: str, mounts: list[dict[str, Any]], environment: list[str]
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
