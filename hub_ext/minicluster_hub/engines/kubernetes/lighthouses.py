"""The lighthouses of fault-tolerant jobs: a pod within each gang's walls, at the address of a Service."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from minicluster_hub.engines.base import LighthouseRefused
from minicluster_hub.engines.capabilities import Lighthouses
from minicluster_hub.engines.kubernetes import pods
from minicluster_hub.engines.kubernetes.api_client.client import (
    ApiConflict,
    ApiRefused,
    Document,
    KubernetesApi,
)
from minicluster_hub.engines.kubernetes.api_client.paths import Paths
from minicluster_hub.engines.kubernetes.cluster_view import ClusterView
from minicluster_hub.engines.kubernetes.gang_objects import LIGHTHOUSE_USER, GangObjects
from minicluster_hub.engines.kubernetes.names import GANG_LABEL, LIGHTHOUSE, Names
from minicluster_hub.engines.kubernetes.pods import PodParts, PodSettings
from minicluster_hub.engines.kubernetes.spec import TaskSettings
from minicluster_hub.engines.kubernetes.view import PodView
from minicluster_hub.jobs.records import LighthouseView

PORT = 29510
_LIMITS = {"memory": "256Mi", "cpu": "1"}
"""It takes 18 MB and a thread for each core. Its job's ranks reach it, so they could have it take more."""
_REQUESTS = {"memory": "64Mi", "cpu": "50m"}


class KubernetesLighthouses(Lighthouses):
    """The address is a Service's, so a pod that is made anew, on another node, has it, too."""

    def __init__(
        self,
        api: KubernetesApi,
        paths: Paths,
        names: Names,
        view: ClusterView,
        gangs: GangObjects,
        settings: Callable[[], TaskSettings],
        log: logging.Logger,
    ) -> None:
        self._api = api
        self._paths = paths
        self._names = names
        self._view = view
        self._gangs = gangs
        self._settings = settings
        self._log = log
        self._addresses: dict[int, str] = {}

    async def open(self) -> None:
        """Find those that an earlier job service made. Raises ApiError."""
        listing = await self._api.list_all(self._paths.services, self._names.selector(LIGHTHOUSE))
        for service in listing.items:
            self._register(int(service["metadata"]["labels"][GANG_LABEL]), service)

    def views(self) -> Mapping[int, LighthouseView]:
        return {gang_id: self._lighthouse_view(gang_id) for gang_id in self._addresses}

    def _lighthouse_view(self, gang_id: int) -> LighthouseView:
        pod, address = self._pod(gang_id), self._addresses[gang_id]
        alive = pod is not None and not pod.over and not pod.deleted
        if pod is not None and pod.node:
            alive = alive and self._view.is_up(pod.node)
        return LighthouseView(gang_id, address, alive=alive, detail="" if alive or not pod else pod.message)

    def _pod(self, gang_id: int) -> PodView | None:
        return self._view.pods.get(self._names.lighthouse(gang_id))

    async def start(self, gang_id: int) -> None:
        await self._api.with_retries(lambda: self._start(gang_id), self._log)

    async def _start(self, gang_id: int) -> None:
        if gang_id in self._addresses and self._lighthouse_view(gang_id).alive:
            return
        settings, name = self._settings(), self._names.lighthouse(gang_id)
        self._gangs.add_user(gang_id, LIGHTHOUSE_USER)
        try:
            await self._gangs.wall(gang_id)
            await self._make_service(gang_id)
            await self._remove_pod(name)
            self._view.put(
                await self._api.create(self._paths.pods, lighthouse_spec(gang_id, self._names, settings.pods))
            )
        except ApiConflict:
            self._log.debug("the lighthouse of gang %s is there already", gang_id)
        except ApiRefused as error:
            await self.end(gang_id)
            raise LighthouseRefused(f"Kubernetes refused the lighthouse: {error.message}") from error

    async def _make_service(self, gang_id: int) -> None:
        name = self._names.lighthouse(gang_id)
        try:
            service = await self._api.create(self._paths.services, service_spec(gang_id, self._names))
        except ApiConflict:
            service = await self._api.get(self._paths.service(name))
        self._register(gang_id, service)

    async def end(self, gang_id: int) -> None:
        name = self._names.lighthouse(gang_id)
        await self._remove_pod(name)
        await self._api.delete(self._paths.service(name))
        await self._gangs.release(gang_id, LIGHTHOUSE_USER)
        self._addresses.pop(gang_id, None)

    async def _remove_pod(self, name: str) -> None:
        """Remove a lighthouse's pod at once: it has nothing to save, and its name is used again."""
        if name in self._view.pods:
            await self._api.delete(self._paths.pod(name), grace_s=0)
            while name in self._view.pods:
                await self._view.next_event.wait()

    def _register(self, gang_id: int, service: Document) -> None:
        self._gangs.add_user(gang_id, LIGHTHOUSE_USER)
        self._addresses[gang_id] = f"{service['spec']['clusterIP']}:{PORT}"


def service_spec(gang_id: int, names: Names) -> Document:
    """Return the Service whose address a gang's lighthouse has as long as the gang lives."""
    marks = names.labels(LIGHTHOUSE, gang=gang_id)
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": names.lighthouse(gang_id), "labels": marks},
        "spec": {"selector": marks, "ports": [{"port": PORT, "targetPort": PORT, "protocol": "TCP"}]},
    }


def lighthouse_spec(gang_id: int, names: Names, settings: PodSettings) -> Document:
    """Return the pod of a gang's lighthouse. It runs the image of the tasks, which has torchft."""
    bind = f"0.0.0.0:{PORT}"
    parts = PodParts(
        name=names.lighthouse(gang_id),
        labels=names.labels(LIGHTHOUSE, gang=gang_id),
        container={
            "image": settings.image,
            "command": ["python", "-P", "-m", "minicluster.runtime.lighthouse", "--bind", bind],
            "env": pods.environment(pods.no_gpu()),
            "resources": {"limits": _LIMITS, "requests": _REQUESTS},
        },
    )
    return pods.pod(parts, settings)
