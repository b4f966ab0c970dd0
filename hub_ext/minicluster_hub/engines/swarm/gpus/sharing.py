"""The shared GPUs of a Swarm: for each, a service that has the GPU and runs MPS for those who share it.

Swarm gives a GPU to one container only. So this service asks for it, and the tasks and notebook servers with
a share are told its id. They reach the daemon through two volumes of the node, in memory: the daemon's pipes,
and /dev/shm, through which CUDA talks to it. (Swarm has no option for a common IPC namespace.)
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from typing import Any

from minicluster.wire.machines.gpu_share import MPS_LOGS, MPS_PIPES, MPS_READY
from minicluster_hub.engines.base import EngineError
from minicluster_hub.engines.capabilities import GpuSharing
from minicluster_hub.engines.swarm import services
from minicluster_hub.engines.swarm.docker import Docker, DockerError, DockerRefused
from minicluster_hub.engines.swarm.gpus.share import (
    COMMAND,
    DRIVER,
    PIPES,
    SHARED_ROLE,
    SharedGpu,
    shared_mounts,
)
from minicluster_hub.engines.swarm.names import CLUSTER, NODE_LABEL, SLOT_LABEL, label_filter, labels
from minicluster_hub.engines.swarm.reflector import Reflector
from minicluster_hub.engines.swarm.spec import TaskSettings
from minicluster_hub.engines.swarm.view import GPU_KIND, SwarmNode, SwarmTask, tasks_of
from minicluster_hub.jobs.slot_numbers import slot_of

_MEMORY_BYTES = 512 << 20
_POLL_S, _STARTS_WITHIN_S, _STAYS_S = 0.2, 60.0, 2.0
"""_STAYS_S: how long one stays at least: a notebook server's lease may be newer than the state of a tick."""
_LOG_LINES = 5
Key = tuple[str, int]
"""A node's id, and a slot."""


class SharingRefused(EngineError):
    """A GPU cannot be shared."""


class SwarmSharedGpus(GpuSharing):
    """What shares GPUs is found again by its labels."""

    def __init__(
        self,
        docker: Docker,
        view: Reflector,
        settings: Callable[[], TaskSettings],
        log: logging.Logger,
        on_change: Callable[[], None],
    ) -> None:
        self._docker = docker
        self._view = view
        self._settings = settings
        self._log = log
        self._on_change = on_change
        self._asked_at: dict[Key, float] = {}
        self._locks: defaultdict[Key, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._removing: dict[Key, asyncio.Task[None]] = {}
        self.refusals: dict[str, str] = {}
        """Why GPUs of a node could not be shared, by the node's id, until the job service starts again."""

    async def open(self) -> None:
        """Find those that an earlier job service made."""
        for service in await self._docker.call("services", filters=label_filter(SHARED_ROLE)):
            marks = service["Spec"]["Labels"]
            self._asked_at[marks[NODE_LABEL], int(marks[SLOT_LABEL])] = -_STAYS_S

    async def close(self) -> None:
        for work in self._removing.values():
            work.cancel()
        await asyncio.gather(*self._removing.values(), return_exceptions=True)

    async def share(self, node: SwarmNode, number: int) -> SharedGpu:
        """Return a node's GPU once it can be shared. number: of a slot, or half. Raises SharingRefused."""
        key, now = (node.id, slot_of(number)), asyncio.get_running_loop().time
        self._asked_at[key] = now()
        async with self._locks[key]:
            self._asked_at[key] = now()  # Its removal may just have ended.
            gpu = _gpu_of(await self._task(key))
            return SharedGpu(gpu or await self._start(key, node), key[1])

    def keep(self, shared: Collection[tuple[str, int]]) -> None:
        names = {node.id: node.name for node in self._view.nodes}
        loop = asyncio.get_running_loop()
        for key, at in list(self._asked_at.items()):
            left_s = at + _STAYS_S - loop.time()
            if (names.get(key[0], ""), key[1]) in shared or key in self._removing:
                continue
            if left_s > 0:
                loop.call_later(left_s, self._on_change)
            else:
                self._removing[key] = asyncio.create_task(self._remove(key))

    async def _remove(self, key: Key) -> None:
        """End a GPU's service. If Docker does not answer, a later tick tries again."""
        try:
            async with self._locks[key]:
                if asyncio.get_running_loop().time() - self._asked_at[key] >= _STAYS_S:
                    await self._docker.remove("remove_service", service_name(key))
                    del self._asked_at[key]
        except DockerError as error:
            self._log.warning("a GPU stays shared for now: %s", error)
        finally:
            del self._removing[key]

    async def _start(self, key: Key, node: SwarmNode) -> str:
        # The daemon of one that is there has ended.
        await self._docker.remove("remove_service", service_name(key))
        try:
            await self._docker.create("create_service", **shared_gpu_spec(key, node, self._settings()))
            return await self._assigned(key)
        except (DockerRefused, SharingRefused) as error:
            self._log.warning("slot %s of %s cannot be shared: %s", key[1], node.name, error)
            raise SharingRefused(f"the GPU of {node.name} cannot be shared: {error}") from error

    async def _assigned(self, key: Key) -> str:
        """Wait until MPS runs (its health check); return the GPU's id. Raises SharingRefused."""
        loop = asyncio.get_running_loop()
        until = loop.time() + _STARTS_WITHIN_S
        while loop.time() < until:
            raw = await self._task(key)
            if gpu := _gpu_of(raw):
                return gpu
            for task in tasks_of([raw] if raw else [], SHARED_ROLE).values():
                if not task.alive:
                    raise SharingRefused(await self._reason(key, task))
            await asyncio.sleep(_POLL_S)
        raise SharingRefused(f"MPS did not start within {_STARTS_WITHIN_S:g} s")

    async def _reason(self, key: Key, task: SwarmTask) -> str:
        """Return why a service ended at its start. If its own program said it, others are refused by it."""
        lines = (await self._docker.logs(service_name(key), _LOG_LINES, self._log)).strip().splitlines()
        said = next((line.rpartition("ERROR ")[2] for line in reversed(lines) if "ERROR " in line), "")
        if said:
            self.refusals[key[0]] = said
        return said or task.error or "its service ended"

    async def _task(self, key: Key) -> Mapping[str, Any] | None:
        """Return the newest task of a GPU's service, as Docker lists it."""
        listed = await self._docker.call("tasks", filters=label_filter(SHARED_ROLE))
        mine = [one for one in listed if _key_of(one) == key]
        return max(mine, key=lambda one: str(one.get("CreatedAt", "")), default=None)


def _key_of(raw: Mapping[str, Any]) -> Key:
    marks = raw["Spec"]["ContainerSpec"]["Labels"]
    return marks[NODE_LABEL], int(marks[SLOT_LABEL])


def _gpu_of(raw: Mapping[str, Any] | None) -> str:
    """Return the id of a running task's GPU; "" if it does not run."""
    if raw is None or (raw.get("Status") or {}).get("State") != "running":
        return ""
    named = (one.get("NamedResourceSpec") or {} for one in raw.get("GenericResources") or ())
    return next((str(one["Value"]) for one in named if one.get("Kind") == GPU_KIND), "")


def service_name(key: Key) -> str:
    return f"{CLUSTER}-{SHARED_ROLE}-{key[0]}-{key[1]}"


def shared_gpu_spec(key: Key, node: SwarmNode, settings: TaskSettings) -> dict[str, Any]:
    """Return the arguments of create_service: pure. The image is that of the tasks, which the node has."""
    environment = {**DRIVER, MPS_PIPES: PIPES, MPS_LOGS: PIPES}
    container = {
        "Image": settings.image,
        "Command": COMMAND,
        "Env": [f"{name}={value}" for name, value in environment.items()],
        # MPS serves the processes of one user: that of all tenants' containers.
        "User": settings.user,
        "StopGracePeriod": services.SECOND_NS,
        "Mounts": shared_mounts(key[1]),
        "Healthcheck": {
            "Test": ["CMD", "test", "-e", f"{PIPES}/{MPS_READY}"],
            "Interval": services.SECOND_NS // 2,
            "Retries": 60,
        },
    }
    spec = services.one_task_service(
        service_name(key),
        container,
        constraint=f"node.id=={node.id}",
        network=services.HOST_NETWORK,
        log={"max-size": "1m"},
        resources={
            "Limits": {"MemoryBytes": _MEMORY_BYTES},
            "Reservations": {"GenericResources": services.reserved_gpus(1)},
        },
    )
    return services.labelled(spec, labels(SHARED_ROLE, name=service_name(key), node=key[0], slot=key[1]))
