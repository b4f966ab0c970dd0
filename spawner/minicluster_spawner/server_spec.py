"""A notebook server as arguments for Docker's API: pure functions from a launch to plain data.

A service's specification has no secrets, since `docker service inspect` shows all of it. The container reads
the server's whole environment from a Docker secret.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from minicluster_hub.engines.safe_names import safe
from minicluster_hub.engines.swarm import services
from minicluster_hub.engines.swarm.gpus.share import SharedGpu, shared_mounts
from minicluster_hub.engines.swarm.names import CLUSTER, home_volume, labels
from minicluster_hub.engines.swarm.tenant_limits import (
    PIDS,
    NodeReserve,
    limits,
    shm_bytes,
    tenants_cpus,
    tenants_memory_bytes,
)
from minicluster_hub.engines.swarm.view import SwarmNode
from minicluster_spawner.container import SECRET_FILE
from minicluster_spawner.options import Choice

SPAWN_LABEL, UNTIL_LABEL = "org.minicluster.spawn", "org.minicluster.until"
# -s: a user's packages are for kernels only; they cannot break the server's start.
COMMAND = ("python", "-P", "-s", "-m", "minicluster_spawner.container")
_FORBIDDEN = re.compile(r"NVIDIA_.*|DOCKER_RESOURCE_.*|CUDA_VISIBLE_DEVICES|LD_.*")


@dataclass(frozen=True, slots=True)
class NfsHomes:
    """Homes on a file server. device: %s stands for the user's folder."""

    options: str
    device: str
    kind: str = "nfs"


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """The settings of all servers of a cluster.

    pids: limit on a server's processes and threads. reserve: each node's CPUs and memory for the platform.
    cpu_guarantee, memory_guarantee_bytes: reserved for each server on its node, within its own limits.
    mounts: further mounts, in the form of Docker's API. shared_homes: None: homes are local volumes.
    """

    network: str = CLUSTER
    command: Sequence[str] = COMMAND
    home_dir: str = "/home/mini"
    user: str = "1000"
    shm_bytes: int = 2**30
    stop_grace_s: float = 5.0
    cpu_guarantee: float = 0.0
    memory_guarantee_bytes: int = 0
    pids: int = PIDS
    reserve: NodeReserve = field(default_factory=NodeReserve)
    mounts: Sequence[Mapping[str, Any]] = ()
    shared_homes: NfsHomes | None = None


@dataclass(frozen=True, slots=True)
class ServerLaunch:
    """One server to start. spawn_id: identifies this start.

    until: when it must return its GPUs, in seconds since the epoch. environment: variables from the job
    service; the server's variables override them. gpus: the ids of GPUs that the job service holds for it;
    without ids the server requests GPUs from Swarm, and has them until it ends. shared: the GPU of which it
    has half.
    """

    service: str
    owner: str
    server: str
    spawn_id: str
    choice: Choice
    node: SwarmNode
    until: float | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    gpus: tuple[str, ...] = ()
    shared: SharedGpu | None = None

    @property
    def labels(self) -> dict[str, str]:
        return labels(
            "server",
            name=self.service,
            owner=self.owner,
            server=self.server,
            spawn=self.spawn_id,
            until=self.until,
        )


def clean_environment(environment: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """Return the environment without variables that grant GPUs or change the loader, and their names."""
    refused = sorted(name for name in environment if _FORBIDDEN.fullmatch(name))
    return {name: value for name, value in environment.items() if name not in refused}, refused


def secret_specs(
    launch: ServerLaunch, environment: Mapping[str, str], files: Mapping[str, bytes]
) -> list[dict[str, Any]]:
    """Return the arguments of create_secret: the environment, and each file (internal certificates)."""
    contents = {SECRET_FILE: json.dumps({"env": dict(environment)}).encode(), **files}
    return [
        {"name": secret_name(launch.spawn_id, file), "data": data, "labels": launch.labels}
        for file, data in contents.items()
    ]


def host_name(spawn_id: str) -> str:
    """Return a server's name on the network. Each start has its own name: resolvers (JupyterHub's, too) cache
    Docker's names for 600 s, and the service's name would lead to the earlier server's address.
    """
    return f"{CLUSTER}-server-{spawn_id}"


def secret_name(spawn_id: str, file: str) -> str:
    return f"{CLUSTER}-server-{spawn_id}-{file}"


def service_spec(
    launch: ServerLaunch, secret_ids: Mapping[str, str], settings: ServerSettings
) -> dict[str, Any]:
    """Return the arguments of create_service. secret_ids: the id of each secret by its name."""
    container = {
        "Image": launch.choice.image,
        "Command": list(settings.command),
        "Env": _visible_gpus(launch),
        "User": settings.user,
        "StopGracePeriod": int(settings.stop_grace_s * services.SECOND_NS),
        "Mounts": [home_mount(launch.owner, settings), *_memory(launch, settings), *settings.mounts],
        "Secrets": [_secret(launch, name, secret_ids[name], settings.user) for name in secret_ids],
    }
    spec = services.one_task_service(
        launch.service,
        container,
        constraint=f"node.id=={launch.node.id}",
        network={"Target": settings.network, "Aliases": [host_name(launch.spawn_id)]},
        log={"max-size": "5m", "max-file": "2"},
        resources=_resources(launch, settings),
    )
    return services.labelled(spec, launch.labels)


def _visible_gpus(launch: ServerLaunch) -> list[str]:
    """Return the variables for NVIDIA's runtime; a container without them would see all GPUs."""
    if launch.shared:
        return [f"{name}={value}" for name, value in launch.shared.environment().items()]
    if launch.gpus:
        # Swarm itself sets the first one; the node's configuration decides which one has effect.
        return [
            f"{name}={','.join(launch.gpus)}" for name in ("DOCKER_RESOURCE_GPU", "NVIDIA_VISIBLE_DEVICES")
        ]
    return [] if launch.choice.gpus else ["NVIDIA_VISIBLE_DEVICES=void"]


def home_mount(owner: str, settings: ServerSettings) -> dict[str, Any]:
    """Return the mount of a user's home: a volume of its node, or one of the lab's file server."""
    mount: dict[str, Any] = {"Type": "volume", "Source": home_volume(owner), "Target": settings.home_dir}
    options: dict[str, Any] = {"Labels": labels("home", owner=owner)}
    if homes := settings.shared_homes:
        # A name of its own: a node may have a local volume with the other name, and Docker would use that.
        mount["Source"] = f"{CLUSTER}-sharedhome-{safe(owner)}"
        how = {"type": homes.kind, "o": homes.options, "device": homes.device.replace("%s", safe(owner))}
        options |= {"NoCopy": True, "DriverConfig": {"Name": "local", "Options": how}}
    return {**mount, "VolumeOptions": options}


def further_mount(source: str, target: str, *, read_only: bool) -> dict[str, Any]:
    """Return an administrator's mount: if the source is a path, a folder of the node, else a named volume."""
    kind = "bind" if source.startswith("/") else "volume"
    return {"Type": kind, "Source": source, "Target": target, "ReadOnly": read_only}


def _memory(launch: ServerLaunch, settings: ServerSettings) -> list[dict[str, Any]]:
    """Return the mount of /dev/shm, and what a server with half a GPU shares with others."""
    if launch.shared:
        return shared_mounts(launch.shared.slot)
    return [services.shared_memory(shm_bytes(settings.shm_bytes, memory_limit_bytes(launch, settings)))]


def _secret(launch: ServerLaunch, name: str, secret_id: str, user: str) -> dict[str, Any]:
    file = name.removeprefix(secret_name(launch.spawn_id, ""))
    return {**services.secret_file(name, file, user), "SecretID": secret_id}


def memory_limit_bytes(launch: ServerLaunch, settings: ServerSettings) -> int:
    """Return a server's memory limit: the chosen one, else half of its node's memory for tenants."""
    return launch.choice.memory_bytes or tenants_memory_bytes(launch.node, settings.reserve) // 2


def cpu_limit(launch: ServerLaunch, settings: ServerSettings) -> float:
    """Return the CPU limit of a server. The engine refuses more CPUs than the node has."""
    most = tenants_cpus(launch.node, settings.reserve)
    return min(launch.choice.cpus or most, launch.node.cpus or most)


def limit_variables(launch: ServerLaunch, settings: ServerSettings) -> dict[str, str]:
    """Return the variables from which JupyterLab's extensions read a server's limits."""
    found = {"CPU_LIMIT": cpu_limit(launch, settings), "MEM_LIMIT": memory_limit_bytes(launch, settings)}
    return {name: str(value) for name, value in found.items() if value}


def _resources(launch: ServerLaunch, settings: ServerSettings) -> dict[str, Any]:
    memory_bytes, cpus = memory_limit_bytes(launch, settings), cpu_limit(launch, settings)
    reserved: dict[str, Any] = {}
    if settings.cpu_guarantee:
        reserved_cpus = min(settings.cpu_guarantee, cpus or settings.cpu_guarantee)
        reserved["NanoCPUs"] = int(reserved_cpus * services.SECOND_NS)
    if settings.memory_guarantee_bytes:
        most_bytes = memory_bytes or settings.memory_guarantee_bytes
        reserved["MemoryBytes"] = min(settings.memory_guarantee_bytes, most_bytes)
    if launch.choice.gpus and not launch.gpus:
        reserved["GenericResources"] = services.reserved_gpus(int(launch.choice.gpus))
    found = {"Limits": limits(memory_bytes, cpus, settings.pids), "Reservations": reserved}
    return {name: value for name, value in found.items() if value}
