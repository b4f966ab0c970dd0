"""The data set agents of a Swarm: a service for each node, pinned to it, with a token of its own.

One global service would have one secret on all nodes, by which each could speak for any. So the job service
makes them, as it makes tasks: it knows the nodes, also those that join later, and only it can make tokens.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
from collections.abc import Callable
from typing import Any

from minicluster_hub.engines.capabilities import DataAgents
from minicluster_hub.engines.node_tokens import NodeTokens
from minicluster_hub.engines.swarm import services
from minicluster_hub.engines.swarm.docker import Docker, DockerError
from minicluster_hub.engines.swarm.names import (
    CLUSTER,
    DATA_ROLE,
    DATA_VOLUME,
    NODE_LABEL,
    SPEC_LABEL,
    label_filter,
    labels,
)
from minicluster_hub.engines.swarm.reflector import Reflector
from minicluster_hub.engines.swarm.spec import DATA_CACHE, TaskSettings, service_ca
from minicluster_hub.engines.swarm.view import SwarmNode

# -s: it is on its node's network, and nothing that lies in a home is to run there.
AGENT_COMMAND = ["python", "-P", "-s", "-m", "minicluster.runtime.node.data_agent"]
TOKEN_FILE = "keeper_token"  # noqa: S105 - a file's name
_ASKS_DRIVER = {"NVIDIA_VISIBLE_DEVICES": "all", "NVIDIA_DRIVER_CAPABILITIES": "utility"}
_AGAIN_S = 5.0


class SwarmDataAgents(DataAgents):
    """Those that are there are found again by their labels. retry: called after a failed try."""

    def __init__(
        self,
        docker: Docker,
        view: Reflector,
        settings: Callable[[], TaskSettings],
        log: logging.Logger,
        retry: Callable[[], None],
    ) -> None:
        self._docker = docker
        self._view = view
        self._settings = settings
        self._log = log
        self._retry = retry
        self._spec_digests: dict[str, str] = {}
        """By a node's id, what its service was made of."""
        self._applied: tuple[object, ...] = ()
        """The nodes and the URL of the last call that acted: one with the same costs nothing."""
        self._work: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Find those that an earlier job service made."""
        for service in await self._docker.call("services", filters=label_filter(DATA_ROLE)):
            marks = service["Spec"]["Labels"]
            if NODE_LABEL in marks:  # A release before had one for all nodes, which `up` removes.
                self._spec_digests[marks[NODE_LABEL]] = marks[SPEC_LABEL]

    def ensure_running(self, service_urls: tuple[str, ...], tokens: NodeTokens, *, needed: bool) -> None:
        """Have one on each node and nowhere else, whether a data set is needed or not."""
        nodes = self._view.nodes
        target = tuple((node.id, node.name) for node in nodes), service_urls
        if target == self._applied or (self._work is not None and not self._work.done()):
            return
        self._applied = target
        settings = self._settings()
        files = {node.id: tokens.file([node.name]) for node in nodes}
        specs = {node.id: data_agent_spec(node, service_urls, files[node.id], settings) for node in nodes}
        self._work = asyncio.get_running_loop().create_task(self._apply(specs, files))

    async def close(self) -> None:
        if self._work is not None:
            self._work.cancel()
            await asyncio.gather(self._work, return_exceptions=True)

    async def _apply(self, specs: dict[str, dict[str, Any]], files: dict[str, str]) -> None:
        try:
            for node_id in self._spec_digests.keys() - specs.keys():
                await self._remove(node_id)
            for node_id, spec in specs.items():
                if self._spec_digests.get(node_id) != spec["labels"][SPEC_LABEL]:
                    await self._remove(node_id)
                    await self._create(node_id, spec, files[node_id])
        except DockerError as error:
            self._log.warning("the agents of data sets are not all there yet: %s", error)
            self._applied = ()
            asyncio.get_running_loop().call_later(_AGAIN_S, self._retry)
        else:
            self._retry()  # nodes may have come meanwhile

    async def _remove(self, node_id: str) -> None:
        name = agent_name(node_id)
        await self._docker.remove("remove_service", name)
        await self._docker.remove("remove_secret", name)
        self._spec_digests.pop(node_id, None)

    async def _create(self, node_id: str, spec: dict[str, Any], file: str) -> None:
        name = agent_name(node_id)
        created = await self._docker.call("create_secret", name, file.encode(), labels=labels(DATA_ROLE))
        (secret,) = spec["task_template"]["ContainerSpec"]["Secrets"]
        secret["SecretID"] = created["ID"]
        await self._docker.call("create_service", **spec)
        self._spec_digests[node_id] = spec["labels"][SPEC_LABEL]


def agent_name(node_id: str) -> str:
    """Return the name of a node's service, and of its secret."""
    return f"{CLUSTER}-{DATA_ROLE}-{node_id}"


def data_agent_spec(
    node: SwarmNode, service_urls: tuple[str, ...], file: str, settings: TaskSettings
) -> dict[str, Any]:
    """Return the arguments of create_service, but for the secret's id: pure. Its label changes with them."""
    name = agent_name(node.id)
    spec = services.one_task_service(
        name,
        _container(node, service_urls, settings),
        constraint=f"node.id=={node.id}",
        network=services.HOST_NETWORK,
        log={"max-size": "10m", "max-file": "3"},
        restart={"Condition": "any", "Delay": services.SECOND_NS},
    )
    text = json.dumps([spec, hashlib.sha256(file.encode()).hexdigest()], sort_keys=True)
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    return services.labelled(spec, labels(DATA_ROLE, name=name, node=node.id, spec=digest))


def _container(node: SwarmNode, service_urls: tuple[str, ...], settings: TaskSettings) -> dict[str, Any]:
    environment = {
        "NVIDIA_VISIBLE_DEVICES": "void",
        "MINICLUSTER_SERVICE_URL": ",".join(service_urls),
        "MINICLUSTER_TOKEN_FILE": f"/run/secrets/{TOKEN_FILE}",
        "MINICLUSTER_KEEPER_NODES": node.name,
        "MINICLUSTER_DATA_CACHE": DATA_CACHE,
        "MINICLUSTER_DATA_CACHE_BYTES": str(settings.data_cache_bytes),
        **service_ca(settings),
        **(_ASKS_DRIVER if settings.watch_gpus else {}),
    }
    volume = {"Type": "volume", "Source": DATA_VOLUME, "Target": DATA_CACHE}
    return {
        "Image": settings.image,
        "Command": AGENT_COMMAND,
        "Env": [f"{key}={value}" for key, value in environment.items()],
        "User": f"{settings.user}:{settings.user}",
        "StopGracePeriod": 5 * services.SECOND_NS,
        "Mounts": [{**volume, "VolumeOptions": {"Labels": labels(DATA_ROLE)}}],
        "Secrets": [services.secret_file(agent_name(node.id), TOKEN_FILE, settings.user)],
    }
