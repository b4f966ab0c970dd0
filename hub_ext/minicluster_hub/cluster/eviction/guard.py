"""Reads a node's tenants from the engine, and ends the one that fills the disk."""

from __future__ import annotations

import logging
import signal
import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress

from minicluster.wire import DISK_FULL_SIGNAL
from minicluster_hub.cluster.daemon import Daemon
from minicluster_hub.cluster.eviction.rules import (
    TENANTS,
    Disk,
    Eviction,
    EvictionStep,
    Tenant,
    UsageHistory,
    Use,
    Verdict,
    tenant_of,
    use_of,
)
from minicluster_hub.engines.swarm.docker import DockerConflict, DockerError, DockerMissing
from minicluster_hub.engines.swarm.names import CLUSTER, CLUSTER_LABEL, ROLE_LABEL

_VOLUMES_PAUSE_S, _VOLUMES_PART = 10.0, 5
"""To measure volumes, the engine reads all their folders: at most 1/5 of the time is spent on that."""

log = logging.getLogger(__name__)


class Volumes:
    """The sizes of the node's volumes, measured in a thread of their own."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon
        self._pool = ThreadPoolExecutor(1, "volumes")
        self._measuring: Future[dict[str, int]] | None = None
        self._sizes: dict[str, int] = {}
        self._not_before = 0.0

    def sizes(self, now: float) -> Mapping[str, int]:
        """Return the last sizes, and start a new measurement when it is due."""
        if self._measuring is not None and self._measuring.done():
            with suppress(DockerError):
                self._sizes = self._measuring.result()
            self._measuring = None
        if self._measuring is None and now >= self._not_before:
            self._measuring = self._pool.submit(self._measure)
        return self._sizes

    def _measure(self) -> dict[str, int]:
        began = time.time()
        try:
            found = self._daemon.once("df").get("Volumes") or ()
        finally:
            took_s = time.time() - began
            self._not_before = time.time() + max(_VOLUMES_PAUSE_S, _VOLUMES_PART * took_s)
        sizes = {one["Name"]: int((one.get("UsageData") or {}).get("Size", -1)) for one in found}
        return {name: size for name, size in sizes.items() if size >= 0}


class Guard:
    """Watches the tenants while the disk is nearly low. local_homes: homes are volumes of this node."""

    def __init__(self, daemon: Daemon, *, local_homes: bool) -> None:
        self._daemon = daemon
        self._volumes = Volumes(daemon) if local_homes else None
        self._history = UsageHistory()
        self._eviction = Eviction()

    def check(self, now: float, disk: Disk) -> bool:
        """Take the next step if the disk is nearly low; return whether the cause is known and just gone."""
        if not (disk.nearly_low or self._eviction.under_way):
            return False
        try:
            tenants = self._tenants(now)
            self._history.add(now, tenants)
            order = self._eviction.next(now, disk, tenants, self._history)
            if order is not None:
                self._carry_out(*order)
            return self._eviction.explained
        except DockerError as error:
            log.warning("the engine does not say who fills the disk: %s", error)
            return False

    def _tenants(self, now: float) -> list[Tenant]:
        raw = [
            one
            for role in TENANTS
            for one in self._daemon.once(
                "containers",
                all=True,
                size=True,
                filters={"label": [f"{CLUSTER_LABEL}={CLUSTER}", f"{ROLE_LABEL}={role}"]},
            )
        ]
        used = {one["Id"]: self._use(one["Id"]) for one in raw if one.get("State") == "running"}
        volumes = self._volumes.sizes(now) if self._volumes else {}
        found = (tenant_of(one, volumes, used) for one in raw)
        return [one for one in found if one is not None]

    def _use(self, container_id: str) -> Use:
        try:
            return use_of(self._daemon.once("stats", container_id, stream=False, one_shot=True))
        except (DockerMissing, DockerConflict):  # It ended a moment ago.
            return Use()

    def _carry_out(self, step: EvictionStep, verdict: Verdict) -> None:
        tenant = verdict.tenant
        log.warning("%s %s (%s): %s", step, tenant, tenant.id[:12], verdict.why)
        with suppress(DockerMissing, DockerConflict):  # It is gone, or has ended.
            if step is EvictionStep.REMOVE:
                self._daemon.once("remove_container", tenant.id, force=True)
            else:
                number = DISK_FULL_SIGNAL if step is EvictionStep.ASK else signal.SIGKILL
                self._daemon.once("kill", tenant.id, signal=int(number))
