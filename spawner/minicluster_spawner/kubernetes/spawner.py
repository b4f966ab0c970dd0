"""JupyterHub's spawner for Kubernetes: KubeSpawner, with GPUs from the ledger that jobs take theirs from.

All else is KubeSpawner's: images and sizes by profiles, homes by claims, pods, events. A server without a GPU
runs wherever Kubernetes has room.
"""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from kubespawner import KubeSpawner
from traitlets import Float, Unicode

from minicluster.wire import PlaceServer, ServerPlacement
from minicluster_spawner.failure import StartFailed
from minicluster_spawner.ledger import LedgerClient, LedgerError

_SETTING = "minicluster_kubernetes_ledger"


class MiniclusterKubeSpawner(KubeSpawner):
    """A profile's `extra_resource_limits` says how many GPUs a server has."""

    user: Any

    gpu_resource = Unicode("nvidia.com/gpu", help="What the device plugin calls a GPU.").tag(config=True)
    max_gpu_hours = Float(
        4.0, help="Hours until a server with GPUs is stopped; the job service may allow less."
    ).tag(config=True)
    service_url = Unicode(
        "http://minicluster:8082/services/minicluster/", help="The job service's URL for the hub."
    ).tag(config=True)
    ledger_token_file = Unicode(
        "/etc/minicluster/spawner-token", help="File with the spawner's token for the job service."
    ).tag(config=True)

    async def get_pod_manifest(self) -> Any:
        """Return the pod; one with GPUs is bound to the node where the job service leased them.

        Raises StartFailed if they cannot be had.
        """
        pod = await super().get_pod_manifest()
        if gpus := self.gpus:
            try:
                place = await self._place(gpus)
            except LedgerError as error:
                raise StartFailed(str(error), reason=error.code or "no_gpu") from error
            bind(pod, place, time.time())
        return pod

    def get_env(self) -> dict[str, str]:
        """Return the server's environment. Its jobs run in its own image, if it is named by digest."""
        own = {"MINICLUSTER_IMAGE": self.image} if "@" in self.image else {}
        return super().get_env() | own

    async def stop(self, now: bool = False) -> None:
        """Remove the pod, then give its GPUs back: the next who gets them must find them free."""
        try:
            await super().stop(now)
        finally:
            await self._free()

    async def poll(self) -> int | None:
        """Return None while the server runs, else its exit code.

        The hub stops no server that has ended, so its GPUs are given back here.
        """
        status = await super().poll()
        if status is not None and self.server is not None and self.pending != "spawn":
            await self._free()
        return status

    @property
    def gpus(self) -> int:
        """How many GPUs the chosen profile gives a server."""
        return int(float(self.extra_resource_limits.get(self.gpu_resource, 0)))

    async def _free(self) -> None:
        with suppress(StartFailed):  # Without a token, none were taken.
            await self._ledger.free(self.user.name, self.name)

    async def _place(self, gpus: int) -> ServerPlacement:
        request = PlaceServer(image=self.image, gpus=gpus, gpu_s=self.max_gpu_hours * 3600, shared_home=True)
        is_first = _SETTING not in self.user.settings
        place = await self._ledger.place(self.user.name, self.name, request)
        if is_first:
            await self._ledger.free_lost(self._is_lost)
        return place

    @property
    def _ledger(self) -> LedgerClient:
        """The client that all spawners of a hub share. Raises StartFailed."""
        settings = self.user.settings
        if _SETTING not in settings:
            try:
                token = Path(self.ledger_token_file).read_text().strip()
            except OSError as error:
                raise StartFailed(
                    f"The hub has no token for the job service: {error}. Tell the cluster's admin.",
                    reason="no_token",
                ) from error
            settings[_SETTING] = LedgerClient(self.service_url, token, self.log)
        return settings[_SETTING]

    def _is_lost(self, place: ServerPlacement) -> bool:
        """Whether this hub has no server for a placement: it ended while the hub was down."""
        from jupyterhub import orm

        session = self.user.db
        user = orm.User.find(session, place.owner)
        found = user.orm_spawners.get(place.server) if user else None
        return found is None or found.server is None


def bind(pod: Any, place: ServerPlacement, now: float) -> None:
    """Bind a pod (V1Pod) to a placement: its node, and the time until which it has its GPUs."""
    from kubernetes_asyncio import client

    requirement = client.V1NodeSelectorRequirement(key="metadata.name", operator="In", values=[place.node])
    spec = pod.spec
    spec.affinity = spec.affinity or client.V1Affinity()
    nodes = spec.affinity.node_affinity = spec.affinity.node_affinity or client.V1NodeAffinity()
    required = nodes.required_during_scheduling_ignored_during_execution
    # Terms are alternatives: so each of them gets the node.
    terms = (required.node_selector_terms if required else None) or [client.V1NodeSelectorTerm()]
    for term in terms:
        term.match_fields = [*(term.match_fields or []), requirement]
    nodes.required_during_scheduling_ignored_during_execution = client.V1NodeSelector(
        node_selector_terms=terms
    )
    if place.until is not None:
        spec.active_deadline_seconds = max(1, int(place.until - now))
    known = {one.name for one in spec.containers[0].env or ()}
    more = [client.V1EnvVar(name=n, value=v) for n, v in place.environment.items() if n not in known]
    spec.containers[0].env = [*(spec.containers[0].env or ()), *more]
