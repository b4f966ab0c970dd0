"""The GPUs of notebook servers, as Swarm sees them: each server's are held by a small service beside it.

Swarm gives a GPU back only with the container that asked for it. So a server does not ask for its GPUs
itself: a service that only sleeps holds them, and the server is told their ids. To take idle GPUs back,
the sleeping service goes, and the server with its kernels stays.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from minicluster_hub.engines.base import GpusRefused
from minicluster_hub.engines.capabilities import GpuHolds
from minicluster_hub.engines.swarm import services
from minicluster_hub.engines.swarm.docker import Docker, DockerRefused
from minicluster_hub.engines.swarm.gpus.sharing import SharingRefused, SwarmSharedGpus
from minicluster_hub.engines.swarm.names import (
    CLUSTER,
    OWNER_LABEL,
    SERVER_LABEL,
    label_filter,
    labels,
    server_name,
)
from minicluster_hub.engines.swarm.reflector import Reflector
from minicluster_hub.engines.swarm.spec import TaskSettings
from minicluster_hub.engines.swarm.view import GPU_KIND, SwarmNode
from minicluster_hub.jobs.records import ServerRecord
from minicluster_hub.jobs.slot_numbers import is_half

ROLE = "gpus"
Key = tuple[str, str]
"""Whose server, and which."""
_POLL_S, _PENDING_S, _APPEARS_S = 0.1, 8.0, 15.0
"""_PENDING_S: a GPU that was shared until now is free some seconds later."""
_MEMORY_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class GpuHolder:
    """A service's task. gpus: the ids that Swarm assigned.

    pending_reason: why it has none, in Docker's words.
    """

    key: Key
    node_id: str
    gpus: tuple[str, ...]
    pending_reason: str


class SwarmGpuHolds(GpuHolds):
    """What holds GPUs is found again by its labels."""

    def __init__(
        self,
        docker: Docker,
        view: Reflector,
        settings: Callable[[], TaskSettings],
        shared: SwarmSharedGpus,
    ) -> None:
        self._docker = docker
        self._shared = shared
        self._view = view
        self._settings = settings
        self._held: dict[Key, tuple[str, ...]] = {}

    async def open(self) -> None:
        """Find those that an earlier job service made."""
        for holder in await self._holders():
            if holder.gpus:
                self._held[holder.key] = holder.gpus

    def all(self) -> Mapping[Key, tuple[str, ...]]:
        return self._held

    async def hold(self, server: ServerRecord) -> tuple[str, ...]:
        """Return the ids once Swarm has assigned them."""
        node = self._view.node_named(server.node)
        if node is None:
            raise GpusRefused(f"there is no node {server.node} in the Swarm any more")
        key = server.owner, server.name
        if any(map(is_half, server.slots)):
            return (await self._share(node, server.slots[0]),)
        if key not in self._held:
            try:
                await self._docker.create("create_service", **holder_spec(server, node, self._settings()))
                self._held[key] = await self._assigned(key, node.name)
            except DockerRefused as error:
                raise GpusRefused(f"Docker refused to hold GPUs on {node.name}: {error.message}") from error
        return self._held[key]

    async def _share(self, node: SwarmNode, half: int) -> str:
        """Return the id of a GPU of which a server has half. Raises GpusRefused."""
        try:
            return (await self._shared.share(node, half)).gpu
        except SharingRefused as error:
            raise GpusRefused(str(error)) from error

    async def release(self, owner: str, name: str) -> None:
        await self._docker.remove("remove_service", holder_name(owner, name))
        while True:
            if not await self._remains((owner, name)):
                break
            await asyncio.sleep(_POLL_S)
        self._held.pop((owner, name), None)

    async def _assigned(self, key: Key, node: str) -> tuple[str, ...]:
        loop = asyncio.get_running_loop()
        begun_s, pending_s = loop.time(), 0.0
        while True:
            mine = next((holder for holder in await self._holders() if holder.key == key), None)
            if mine is not None and mine.gpus:
                return mine.gpus
            pending_s = pending_s + _POLL_S if mine is not None and mine.pending_reason else 0.0
            if pending_s > _PENDING_S or loop.time() - begun_s > _APPEARS_S:
                why = mine.pending_reason if mine is not None else "its service does not appear"
                raise GpusRefused(f"Docker finds no free GPU: {node} has no room ({why})")
            await asyncio.sleep(_POLL_S)

    async def _remains(self, key: Key) -> bool:
        """Tell whether something of it is there. On a node that is down it is listed until that is back."""
        return any(one.key == key and self._view.is_up(one.node_id) for one in await self._holders())

    async def _holders(self) -> list[GpuHolder]:
        return [holder_of(one) for one in await self._docker.call("tasks", filters=label_filter(ROLE))]


def holder_name(owner: str, name: str) -> str:
    """Return the service's name: like the server's, with another word in it."""
    return f"{CLUSTER}-{ROLE}-{server_name(owner, name).removeprefix(f'{CLUSTER}-server-')}"


def holder_of(raw: Mapping[str, Any]) -> GpuHolder:
    """Return one from a task as Docker lists it: pure."""
    marks = raw["Spec"]["ContainerSpec"]["Labels"]
    named = (one.get("NamedResourceSpec") or {} for one in raw.get("GenericResources") or ())
    status = raw.get("Status") or {}
    return GpuHolder(
        key=(marks[OWNER_LABEL], marks[SERVER_LABEL]),
        node_id=str(raw.get("NodeID", "")),
        gpus=tuple(str(one["Value"]) for one in named if one.get("Kind") == GPU_KIND),
        pending_reason=str(status.get("Err", "")) if status.get("State") == "pending" else "",
    )


def holder_spec(server: ServerRecord, node: SwarmNode, settings: TaskSettings) -> dict[str, Any]:
    """Return the arguments of create_service: pure. Its image is one that each node has."""
    name = holder_name(server.owner, server.name)
    container = {
        "Image": settings.image,
        "Command": ["sleep", "infinity"],
        "User": settings.user,
        "StopGracePeriod": services.SECOND_NS,
    }
    spec = services.one_task_service(
        name,
        container,
        constraint=f"node.id=={node.id}",
        network=services.HOST_NETWORK,
        log={"max-size": "1m"},
        resources={
            "Limits": {"MemoryBytes": _MEMORY_BYTES},
            "Reservations": {"GenericResources": services.reserved_gpus(len(server.slots))},
        },
    )
    return services.labelled(spec, labels(ROLE, name=name, owner=server.owner, server=server.name))
