"""The data set agents: pods that fetch data sets into volumes which tasks read.

A pod may have no folder of its node (Pod Security Standard `restricted`). So a cache is a claim: one for each
node, of a storage class on the nodes' own disks, or one for all nodes, of a file server.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from minicluster_hub.engines.capabilities import DataAgents
from minicluster_hub.engines.kubernetes import pods
from minicluster_hub.engines.kubernetes.api_client.client import (
    ApiConflict,
    ApiError,
    Document,
    KubernetesApi,
)
from minicluster_hub.engines.kubernetes.api_client.paths import Paths
from minicluster_hub.engines.kubernetes.cluster_view import ClusterView
from minicluster_hub.engines.kubernetes.names import DATA, SPEC_MARK, Names
from minicluster_hub.engines.kubernetes.pods import PodParts
from minicluster_hub.engines.kubernetes.spec import DATA_CACHE, TaskSettings
from minicluster_hub.engines.node_tokens import NodeTokens

# -s: nothing that lies in a home is to run there.
AGENT_COMMAND = ["python", "-P", "-s", "-m", "minicluster.runtime.node.data_agent"]
_AGAIN_S = 5.0
_RESOURCES = {"limits": {"memory": "1Gi", "cpu": "2"}, "requests": {"memory": "128Mi", "cpu": "50m"}}


@dataclass(frozen=True, slots=True)
class DataVolumes:
    """Where the caches are.

    claim: of all nodes together; "": each node has its own, of this storage class and size. cache_bytes:
    most bytes of a cache; 0: as much as its volume takes.
    """

    claim: str = ""
    storage_class: str = ""
    size: str = "100Gi"
    cache_bytes: int = 0


@dataclass(frozen=True, slots=True)
class DataAgentPlan:
    """An agent to have: its pod, its Secret, its claim unless that is an admin's."""

    name: str
    pod: Document
    secret: Document
    claim: Document | None


class KubernetesDataAgents(DataAgents):
    """Those that are there are found again by their labels. retry: called when there may be more to do."""

    def __init__(
        self,
        api: KubernetesApi,
        paths: Paths,
        names: Names,
        view: ClusterView,
        volumes: DataVolumes,
        settings: Callable[[], TaskSettings],
        log: logging.Logger,
        retry: Callable[[], None],
    ) -> None:
        self._api = api
        self._paths = paths
        self._names = names
        self._view = view
        self._volumes = volumes
        self._settings = settings
        self._log = log
        self._retry = retry
        self._claims: set[str] = set()
        """Names of claims that are known to be there."""
        self._wanted = False
        self._settled: tuple[object, ...] = ()
        """The nodes, URLs and agents of a call that found nothing to do: the next one costs nothing."""
        self._work: asyncio.Task[None] | None = None

    def ensure_running(self, service_urls: tuple[str, ...], tokens: NodeTokens, *, needed: bool) -> None:
        """Start missing agents, and those whose settings have changed, once a data set is needed."""
        present = {name: pod for name, pod in self._view.pods.items() if pod.role == DATA}
        self._wanted = self._wanted or needed or bool(present)
        if not self._wanted or (self._work is not None and not self._work.done()):
            return
        state = tuple(node.name for node in self._view.nodes), service_urls, tuple(present.values())
        if state == self._settled:
            return
        plans = {plan.name: plan for plan in self._plans(service_urls, tokens)}
        unwanted = [
            name for name, pod in present.items() if pod.over or not _same(pod.marks, plans.get(name))
        ]
        missing = [plan for name, plan in plans.items() if name not in present]
        self._settled = () if unwanted or missing else state
        if unwanted or missing:
            self._work = asyncio.get_running_loop().create_task(self._apply(unwanted, missing, {*plans}))

    async def ensure_claim(self, node: str) -> None:
        """Have the claim that tasks on a node mount. Raises ApiError."""
        name = self._names.data_agent(node)
        if self._volumes.claim or name in self._claims:
            return
        with suppress(ApiConflict):
            await self._api.create(self._paths.claims, claim_spec(name, self._names, self._volumes))
        self._claims.add(name)

    async def close(self) -> None:
        if self._work is not None:
            self._work.cancel()
            await asyncio.gather(self._work, return_exceptions=True)

    def _plans(self, service_urls: tuple[str, ...], tokens: NodeTokens) -> list[DataAgentPlan]:
        nodes, settings = [node.name for node in self._view.nodes], self._settings()
        groups = [nodes] if self._volumes.claim else [[node] for node in nodes]
        return [
            data_agent_plan(group, service_urls, tokens.file(group), settings, self._volumes)
            for group in groups
            if group
        ]

    async def _apply(self, unwanted: list[str], missing: list[DataAgentPlan], wanted: set[str]) -> None:
        try:
            for name in unwanted:
                await self._remove(name, for_good=name not in wanted)
            for plan in missing:
                await self._create(plan)
        except ApiError as error:
            self._log.warning("the agents of data sets are not all there yet: %s", error)
            await asyncio.sleep(_AGAIN_S)
        # What was removed to change is now missing.
        asyncio.get_running_loop().call_soon(self._retry)

    async def _remove(self, name: str, *, for_good: bool) -> None:
        await self._api.delete(self._paths.pod(name), grace_s=5)
        if for_good:
            self._claims.discard(name)
            await self._api.delete(self._paths.secret(name))
            if not self._volumes.claim:
                await self._api.delete(self._paths.claim(name))
        while (pod := self._view.pods.get(name)) is not None:
            event = self._view.next_event
            if pod.node and not self._view.is_up(pod.node):
                await self._api.delete(self._paths.pod(name), grace_s=0)
            await event.wait()

    async def _create(self, plan: DataAgentPlan) -> None:
        if plan.claim is not None:
            with suppress(ApiConflict):
                await self._api.create(self._paths.claims, plan.claim)
            self._claims.add(plan.name)
        await self._api.apply(self._paths.secret(plan.name), plan.secret, self._names.cluster)
        with suppress(ApiConflict):
            self._view.put(await self._api.create(self._paths.pods, plan.pod))


def _same(marks: Any, plan: DataAgentPlan | None) -> bool:
    return plan is not None and marks.get(SPEC_MARK) == plan.pod["metadata"]["annotations"][SPEC_MARK]


def data_agent_plan(
    nodes: list[str],
    service_urls: tuple[str, ...],
    token_file: str,
    settings: TaskSettings,
    volumes: DataVolumes,
) -> DataAgentPlan:
    """Return the agent of one node, or of all if they share a cache: pure."""
    names = settings.names
    name = names.data_agent("all" if volumes.claim else nodes[0])
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name, "labels": names.labels(DATA)},
        "data": {"token": base64.b64encode(token_file.encode()).decode()},
    }
    parts = _agent_parts(name, nodes, service_urls, settings, volumes)
    pod = pods.pod(parts, settings.pods)
    text = json.dumps([pod, hashlib.sha256(token_file.encode()).hexdigest()], sort_keys=True)
    pod["metadata"]["annotations"] = {SPEC_MARK: hashlib.sha256(text.encode()).hexdigest()[:16]}
    claim = None if volumes.claim else claim_spec(name, names, volumes)
    return DataAgentPlan(name, pod, secret, claim)


def _agent_parts(
    name: str,
    nodes: list[str],
    service_urls: tuple[str, ...],
    settings: TaskSettings,
    volumes: DataVolumes,
) -> PodParts:
    environment = {
        "MINICLUSTER_SERVICE_URL": ",".join(service_urls),
        **pods.token_variable(),
        "MINICLUSTER_KEEPER_NODES": ",".join(nodes),
        "MINICLUSTER_DATA_CACHE": DATA_CACHE,
        "MINICLUSTER_DATA_CACHE_BYTES": str(volumes.cache_bytes),
        # A pod sees its own network, not its node's.
        "MINICLUSTER_READINGS": "0",
        **pods.service_ca(settings.pods),
        **pods.no_gpu(),
    }
    return PodParts(
        name=name,
        labels=settings.names.labels(DATA),
        nodes=() if volumes.claim else (nodes[0],),
        restart="Always",
        grace_s=5,
        volumes=[
            pods.token_volume(name, "token"),
            pods.claim_volume("data", volumes.claim or name, DATA_CACHE, read_only=False),
        ],
        container={
            "image": settings.pods.image,
            "command": AGENT_COMMAND,
            "env": pods.environment(environment),
            "resources": _RESOURCES,
        },
    )


def claim_spec(name: str, names: Names, volumes: DataVolumes) -> Document:
    """Return the claim of one node's cache. Its first pod is bound to the node, and so becomes its volume."""
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": name, "labels": names.labels(DATA)},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": volumes.storage_class,
            "resources": {"requests": {"storage": volumes.size}},
        },
    }
