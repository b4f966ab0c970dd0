"""What Kubernetes has of our pods, the nodes and their leases, followed by three watches."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

from minicluster_hub.engines.kubernetes import node_leases
from minicluster_hub.engines.kubernetes.api_client.client import Document, KubernetesApi
from minicluster_hub.engines.kubernetes.api_client.paths import NODES, Paths
from minicluster_hub.engines.kubernetes.api_client.watching import Watched
from minicluster_hub.engines.kubernetes.names import Names
from minicluster_hub.engines.kubernetes.node_leases import NodeLeases
from minicluster_hub.engines.kubernetes.view import (
    KubernetesNode,
    LeaseView,
    PodView,
    lease_view,
    node_view,
    pod_view,
)

NO_PLUGIN = "its device plugin offers no GPU at the moment"


@dataclass(frozen=True, slots=True)
class NodeSettings:
    """selector: labels of the nodes that belong to the cluster; "": all. Others: see view.node_view."""

    selector: str
    gpu_resource: str
    tolerated: frozenset[str]


class ClusterView:
    """The last state stays while the API server is away.

    on_change: called after each change, with the name of the pod that changed; "" if it was something else.
    """

    def __init__(
        self, api: KubernetesApi, paths: Paths, names: Names, nodes: NodeSettings, log: logging.Logger
    ) -> None:
        self.on_change: Callable[[str], None] = lambda _name: None
        self._silent: frozenset[str] = frozenset()
        self._gpus: dict[str, int] = {}
        """How many GPUs each node offered when it last offered any."""
        self._next_event = asyncio.Event()
        self._renewals = NodeLeases(lambda: asyncio.get_running_loop().time())
        read_node = partial(node_view, gpu_resource=nodes.gpu_resource, tolerated=nodes.tolerated)
        self._pods = Watched(api, paths.pods, names.selector(), pod_view, self._pod_event, log)
        self._nodes = Watched(api, NODES, nodes.selector, read_node, self._node_event, log)
        self._leases = Watched(api, node_leases.PATH, "", lease_view, self._lease_event, log)

    async def open(self) -> None:
        """List everything, then follow it. Raises ApiError; it may then be called again."""
        for watched in (self._pods, self._nodes, self._leases):
            await watched.open()

    async def close(self) -> None:
        await asyncio.gather(self._pods.close(), self._nodes.close(), self._leases.close())

    @property
    def pods(self) -> Mapping[str, PodView]:
        return self._pods.objects

    @property
    def nodes(self) -> tuple[KubernetesNode, ...]:
        """The nodes by name."""
        return tuple(self._with_gpus(self._nodes.objects[name]) for name in sorted(self._nodes.objects))

    def node(self, name: str) -> KubernetesNode | None:
        node = self._nodes.objects.get(name)
        return None if node is None else self._with_gpus(node)

    def _with_gpus(self, node: KubernetesNode) -> KubernetesNode:
        """Return a node with its usual GPUs: while its device plugin or kubelet restarts, it offers none."""
        usual = self._gpus.get(node.name, 0)
        return node if node.gpus or not usual else replace(node, gpus=usual, closed=node.closed or NO_PLUGIN)

    def is_up(self, name: str) -> bool:
        """Tell whether that node is there, ready, and not silent."""
        node = self._nodes.objects.get(name)
        return node is not None and node.ready and name not in self._silent

    def put(self, document: Document) -> None:
        """Note a pod that the server has just created."""
        self._pods.put(document)

    @property
    def next_event(self) -> asyncio.Event:
        """Return what is set at the next event of a pod, a node or a lease."""
        return self._next_event

    # --- events -------------------------------------------------------------------------------

    def _pod_event(self, name: str, changed: bool) -> None:
        self._move()
        if changed:
            self.on_change(name)

    def _node_event(self, _name: str, changed: bool) -> None:
        nodes: Mapping[str, KubernetesNode] = self._nodes.objects
        usual = {name: node.gpus or self._gpus.get(name, 0) for name, node in nodes.items()}
        self._gpus = {name: gpus for name, gpus in usual.items() if gpus}
        self._move()
        if changed:
            self.on_change("")

    def _lease_event(self, name: str, _changed: bool) -> None:
        leases: Mapping[str, LeaseView] = self._leases.objects
        if not name:
            self._renewals.listed({node: lease.duration_s for node, lease in leases.items()})
        elif name in leases:
            self._renewals.renewed(name, leases[name].duration_s)
        silent = frozenset(node for node in leases if self._renewals.silent(node))
        if silent != self._silent:
            self._silent = silent
            self._move()
            self.on_change("")

    def _move(self) -> None:
        self._next_event.set()
        self._next_event = asyncio.Event()
