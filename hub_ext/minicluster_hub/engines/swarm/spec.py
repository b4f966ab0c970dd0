"""A task as Docker's API wants it: pure functions from a launch to plain data, sent by the engine."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from minicluster_hub.engines.base import TaskLaunch
from minicluster_hub.engines.swarm import services
from minicluster_hub.engines.swarm.gpus.share import SharedGpu, shared_mounts
from minicluster_hub.engines.swarm.names import (
    DATA_ROLE,
    DATA_VOLUME,
    SERVES_NETWORK,
    gang_network,
    labels,
    task_name,
)
from minicluster_hub.engines.swarm.tenant_limits import (
    PIDS,
    NodeReserve,
    limits,
    shm_bytes,
    tenants_cpus,
    tenants_memory_bytes,
)
from minicluster_hub.engines.swarm.view import SwarmNode

AGENT_COMMAND = ["python", "-P", "-m", "minicluster.runtime.agent"]
TOKEN_FILE = "task-token"  # noqa: S105 - a file's name
SCRATCH = "/tmp/minicluster"  # noqa: S108 - in the task's own container
DATA_LINKS, DATA_CACHE = "/data", "/cluster-data"
_USER_ID = "1000"


@dataclass(frozen=True, slots=True)
class TaskSettings:
    """What all tasks of a cluster have in common.

    image: of tasks whose launch names none. host_network: tasks share their node's network, which
    saves VXLAN's headers and gives up the walls between jobs. verify_gpus: the agent compares the
    GPUs that it sees with those that Swarm assigned. pids: the most processes and threads of a task.
    memory_per_slot_bytes: 0: a slot's share of what its node has but for the reserve. service_ca: the
    certificate, as PEM text, of the authority by which agents know the job service. data_cache_bytes: most
    of a node's cache of data sets, 0: as much as its disk takes. watch_gpus: the nodes' drivers are asked
    whether GPUs are used.
    """

    image: str
    shm_bytes: int = 2 * 1024**3
    host_network: bool = False
    verify_gpus: bool = True
    user: str = _USER_ID
    stop_grace_s: float = 1.0
    pids: int = PIDS
    memory_per_slot_bytes: int = 0
    reserve: NodeReserve = field(default_factory=NodeReserve)
    service_ca: str = ""
    data_cache_bytes: int = 0
    watch_gpus: bool = False


def network_spec(gang_id: int) -> dict[str, Any]:
    """Return the arguments of create_network for a gang's own overlay network."""
    return {
        "name": gang_network(gang_id),
        "driver": "overlay",
        "labels": labels("gang", gang=gang_id),
        "attachable": False,
    }


def secret_spec(launch: TaskLaunch) -> dict[str, Any]:
    """Return the arguments of create_secret for a task's token."""
    return {
        "name": task_name(launch.task_id),
        "data": launch.token.encode(),
        "labels": labels("task", task=launch.task_id, gang=launch.gang_id),
    }


def service_spec(
    launch: TaskLaunch,
    node: SwarmNode,
    slot_kinds: tuple[str, ...],
    secret_id: str,
    settings: TaskSettings,
    shared: SharedGpu | None = None,
) -> dict[str, Any]:
    """Return the arguments of create_service for a task.

    slot_kinds: of all slots of the node; those of the launch that are GPUs are asked of Swarm. shared: the
    GPU of which it has a share; another service asks for it.
    """
    environment = _environment(launch, node, slot_kinds, settings)
    memory_bytes = task_memory_bytes(launch, node, slot_kinds, settings)
    cpus, gpus = tenants_cpus(node, settings.reserve), _gpus(launch, slot_kinds)
    resources: dict[str, Any] = {"Limits": limits(memory_bytes, cpus, settings.pids)}
    if shared:
        environment |= shared.environment()
    elif gpus:
        resources["Reservations"] = {"GenericResources": services.reserved_gpus(gpus)}
    spec = services.one_task_service(
        task_name(launch.task_id),
        _container(launch, environment, secret_id, memory_bytes, settings, shared),
        constraint=f"node.id=={node.id}",
        network=_network(launch, settings),
        log={"max-size": "1m", "max-file": "2"},
        resources=resources,
    )
    marks = labels(
        "task",
        name=task_name(launch.task_id),
        owner=launch.owner,
        job=launch.job_id,
        attempt=launch.attempt_id,
        gang=launch.gang_id,
        task=launch.task_id,
        epoch=launch.epoch,
    )
    return services.labelled(spec, marks)


def _network(launch: TaskLaunch, settings: TaskSettings) -> dict[str, str]:
    """Return a task's network: its gang's, or the one that replicas of models share with the job services."""
    if settings.host_network:
        return services.HOST_NETWORK
    return {"Target": SERVES_NETWORK if launch.serves else gang_network(launch.gang_id)}


def task_memory_bytes(
    launch: TaskLaunch, node: SwarmNode, slot_kinds: tuple[str, ...], settings: TaskSettings
) -> int:
    """Return how much memory a task may take: so much for each of its slots; 0: the node does not tell."""
    most_bytes = tenants_memory_bytes(node, settings.reserve)
    slots = launch.gpu_share or len(launch.slots)
    share_bytes = int(most_bytes * slots // max(1, len(slot_kinds)))
    wanted_bytes = int(settings.memory_per_slot_bytes * slots)
    return min(wanted_bytes, most_bytes) if wanted_bytes and most_bytes else wanted_bytes or share_bytes


def _container(
    launch: TaskLaunch,
    environment: dict[str, str],
    secret_id: str,
    memory_bytes: int,
    settings: TaskSettings,
    shared: SharedGpu | None,
) -> dict[str, Any]:
    token = services.secret_file(task_name(launch.task_id), TOKEN_FILE, settings.user)
    asked_bytes = launch.shm_bytes or settings.shm_bytes
    own = [services.shared_memory(shm_bytes(asked_bytes, memory_bytes))]
    memory = shared_mounts(shared.slot) if shared else own
    container: dict[str, Any] = {
        "Image": launch.image or settings.image,
        "Command": AGENT_COMMAND,
        "Env": [f"{name}={value}" for name, value in environment.items()],
        "User": settings.user,
        "StopGracePeriod": int(settings.stop_grace_s * services.SECOND_NS),
        "Mounts": [*memory, *_data()],
        "Secrets": [{**token, "SecretID": secret_id}],
    }
    if not settings.host_network:
        container["Hostname"] = host_name(launch.task_id)
    return container


def host_name(task_id: int) -> str:
    """Return the name of a task's container: its /etc/hosts leads it to the address on the gang's network."""
    return f"task-{task_id}"


def _gpus(launch: TaskLaunch, slot_kinds: tuple[str, ...]) -> int:
    return sum(slot_kinds[slot] == "gpu" for slot in launch.slots)


def _environment(
    launch: TaskLaunch, node: SwarmNode, slot_kinds: tuple[str, ...], settings: TaskSettings
) -> dict[str, str]:
    gpus = _gpus(launch, slot_kinds)
    environment = {
        "MINICLUSTER_SERVICE_URL": ",".join(launch.service_urls),
        "MINICLUSTER_TOKEN_FILE": f"/run/secrets/{TOKEN_FILE}",
        "MINICLUSTER_NODE": launch.node,
        "MINICLUSTER_SLOTS": ",".join(map(str, launch.slots)),
        "MINICLUSTER_ADDRESS": node.address if settings.host_network else host_name(launch.task_id),
        "MINICLUSTER_TASK": str(launch.task_id),
        "MINICLUSTER_SCRATCH": SCRATCH,
        "MINICLUSTER_GPUS": str(gpus),
        "MINICLUSTER_NODE_SLOTS": str(len(slot_kinds)),
        "MINICLUSTER_DATA_SETS": DATA_LINKS,
        "MINICLUSTER_DATA_CACHE": DATA_CACHE,
        **service_ca(settings),
    }
    if not gpus:
        # NVIDIA's runtime would show all GPUs of the node to a container that says nothing.
        environment["NVIDIA_VISIBLE_DEVICES"] = "void"
    elif not settings.verify_gpus:
        environment["MINICLUSTER_VERIFY_GPUS"] = "0"
    return environment


def service_ca(settings: TaskSettings) -> dict[str, str]:
    """Return what tells an agent how it knows the job service."""
    return {"MINICLUSTER_SERVICE_CA": settings.service_ca} if settings.service_ca else {}


def _data() -> list[dict[str, Any]]:
    """The node's cache of data sets, which a task only reads, and a folder for links into it."""
    volume = {"NoCopy": True, "Labels": labels(DATA_ROLE)}
    cache = {"Type": "volume", "Source": DATA_VOLUME, "Target": DATA_CACHE, "ReadOnly": True}
    links = {"SizeBytes": 1 << 20, "Mode": 0o1777}
    return [
        {**cache, "VolumeOptions": volume},
        {"Type": "tmpfs", "Target": DATA_LINKS, "TmpfsOptions": links},
    ]
