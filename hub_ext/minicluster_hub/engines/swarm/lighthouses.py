"""The lighthouses of fault-tolerant jobs: a small service of its own on each gang's network, on a manager."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from minicluster_hub.engines.base import LighthouseRefused
from minicluster_hub.engines.capabilities import Lighthouses
from minicluster_hub.engines.swarm import services
from minicluster_hub.engines.swarm.docker import Docker, DockerRefused
from minicluster_hub.engines.swarm.names import (
    ADDRESS_LABEL,
    GANG_LABEL,
    gang_network,
    label_filter,
    labels,
    lighthouse_name,
)
from minicluster_hub.engines.swarm.networks import GangNetworks
from minicluster_hub.engines.swarm.reflector import Reflector
from minicluster_hub.engines.swarm.spec import TaskSettings
from minicluster_hub.engines.swarm.tenant_limits import limits
from minicluster_hub.engines.swarm.view import SwarmNode
from minicluster_hub.jobs.records import LighthouseView

PORT = 29510
_HOST_PORTS = 1000
_NETWORK_USER = -1
"""Holds a gang's network as a task does; tasks count from 1."""
_LIMITS = limits(memory_bytes=256 << 20, cpus=1.0, pids=512)
"""It takes 18 MB and a thread for each core. Its job's ranks reach it, so they could have it take more."""


class SwarmLighthouses(Lighthouses):
    """Swarm keeps them running, on another manager when theirs is down; their name stays."""

    def __init__(
        self,
        docker: Docker,
        networks: GangNetworks,
        view: Reflector,
        settings: Callable[[], TaskSettings],
        log: logging.Logger,
    ) -> None:
        self._docker = docker
        self._networks = networks
        self._view = view
        self._settings = settings
        self._log = log
        self._views: dict[int, LighthouseView] = {}

    async def open(self) -> None:
        """Find those that an earlier service made."""
        for service in await self._docker.call("services", filters=label_filter("lighthouse")):
            marks = service["Spec"]["Labels"]
            self._register(int(marks[GANG_LABEL]), marks[ADDRESS_LABEL])

    def views(self) -> Mapping[int, LighthouseView]:
        return self._views

    async def start(self, gang_id: int) -> None:
        await self._docker.with_retries(lambda: self._start(gang_id), self._log)

    async def _start(self, gang_id: int) -> None:
        if gang_id in self._views:
            return
        managers = [node for node in self._view.nodes if node.manager and node.up]
        if not managers:
            raise LighthouseRefused("no manager of the Swarm is up to run the lighthouse")
        settings = self._settings()
        spec = lighthouse_spec(gang_id, managers[0], settings)
        self._register(gang_id, spec["labels"][ADDRESS_LABEL])
        try:
            if not settings.host_network:
                await self._networks.make(gang_id)
            await self._docker.create("create_service", **spec)
        except DockerRefused as error:
            self._views.pop(gang_id, None)
            raise LighthouseRefused(f"Docker refused the lighthouse: {error.message}") from error

    async def end(self, gang_id: int) -> None:
        await self._docker.remove("remove_service", lighthouse_name(gang_id))
        self._views.pop(gang_id, None)
        await self._networks.release(gang_id, _NETWORK_USER)

    def _register(self, gang_id: int, address: str) -> None:
        self._networks.add_task(gang_id, _NETWORK_USER)
        self._views[gang_id] = LighthouseView(gang_id, address, alive=True)


def lighthouse_spec(gang_id: int, manager: SwarmNode, settings: TaskSettings) -> dict[str, Any]:
    """Return the arguments of create_service for a gang's lighthouse: pure.

    It runs the image of the tasks, which every node has and which has torchft. On its nodes' own
    network it has a port of its own and stays on one manager.
    """
    host = settings.host_network
    port = PORT + gang_id % _HOST_PORTS if host else PORT
    address = f"{manager.address if host else lighthouse_name(gang_id)}:{port}"
    marks = labels("lighthouse", name=lighthouse_name(gang_id), gang=gang_id, address=address)
    bind = f"{manager.address if host else '0.0.0.0'}:{port}"  # noqa: S104 - in its own container
    container = {
        "Image": settings.image,
        "Command": ["python", "-P", "-m", "minicluster.runtime.lighthouse", "--bind", bind],
        # NVIDIA's runtime would show all GPUs of the node to a container that says nothing.
        "Env": ["NVIDIA_VISIBLE_DEVICES=void"],
        "User": settings.user,
        "ReadOnly": True,
        "StopGracePeriod": services.SECOND_NS,
    }
    spec = services.one_task_service(
        lighthouse_name(gang_id),
        container,
        constraint=f"node.id=={manager.id}" if host else "node.role==manager",
        network=services.HOST_NETWORK if host else {"Target": gang_network(gang_id)},
        log={"max-size": "1m", "max-file": "2"},
        resources={"Limits": _LIMITS},
        restart={"Condition": "any", "Delay": services.SECOND_NS // 5},
    )
    return services.labelled(spec, marks)
