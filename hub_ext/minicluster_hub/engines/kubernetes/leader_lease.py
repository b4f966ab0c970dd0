"""Which of several job services acts, by a Lease of Kubernetes: the one that renews it in time.

Nobody compares clocks: a Lease is over when it did not change for its duration, as seen by who watches it.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from datetime import UTC, datetime

from minicluster_hub.engines.capabilities import LeaderLease
from minicluster_hub.engines.kubernetes.api_client.client import (
    ApiConflict,
    ApiMissing,
    Document,
    KubernetesApi,
)
from minicluster_hub.engines.kubernetes.api_client.paths import Paths
from minicluster_hub.engines.kubernetes.names import Names
from minicluster_hub.engines.kubernetes.view import LeaseView, lease_view

LEASE_S = 15.0
"""As Kubernetes' own controllers have it: a restart of the API server ends no lead."""
RETRY_S = 2.0
"""How long a renewal waits for the API server. It is then tried again: a lead lasts from the question on."""
POD_ENV = "MINICLUSTER_POD_UID"
"""The variable with the id of the pod. When its container is started anew, the former one has ended."""


class KubernetesLeaderLease(LeaderLease):
    """It has a connection of its own, since a service that does not lead has no engine that is open.

    holder: the URL at which the others reach this service. pod: the id of the pod whose only job service this
    is: when it is started again there, it leads at once.
    """

    lease_s = LEASE_S

    def __init__(
        self,
        api: KubernetesApi,
        paths: Paths,
        names: Names,
        holder: str,
        clock: Callable[[], float] = time.monotonic,
        pod: str = "",
    ) -> None:
        self._api = api
        self._paths = paths
        self._name = f"{names.cluster}-leader"
        self._labels = names.labels("leader")
        self._identity = f"{holder} {pod or uuid.uuid4()}"
        self._clock = clock
        self._seen: tuple[str, float] = "", 0.0
        """The newest version of the Lease, and when it was first seen."""

    async def take(self) -> bool:
        """Take the Lease if it is over or nobody's; return whether it is ours."""
        found = await self._read()
        if found is None:
            return await self._create()
        document, lease, age_s = found
        free = not lease.holder or lease.holder == self._identity or age_s > lease.duration_s
        return free and await self._write(document, transitions=1)

    async def renew(self) -> bool:
        """Renew the Lease; return whether it is still ours."""
        while True:
            found = await self._read()
            if found is None or found[1].holder != self._identity:
                return False
            if await self._write(found[0], transitions=0):
                return True  # Else it was written since it was read, maybe by us: the answer was lost.

    async def read(self) -> tuple[str, float]:
        """Return the holder's URL, "" if there is none, and for how many seconds it did not renew."""
        found = await self._read()
        return (found[1].holder.partition(" ")[0], found[2]) if found else ("", 0.0)

    async def close(self) -> None:
        """Release the Lease, so that another service takes over at once."""
        try:
            found = await self._read()
            if found is not None and found[1].holder == self._identity:
                await self._write(found[0], transitions=0, holder="")
        finally:
            await self._api.close()

    async def _read(self) -> tuple[Document, LeaseView, float] | None:
        try:
            document = await self._api.get(self._paths.lease(self._name))
        except ApiMissing:
            return None
        lease, now = lease_view(document), self._clock()
        if lease.version != self._seen[0]:
            self._seen = lease.version, now
        return document, lease, now - self._seen[1]

    async def _create(self) -> bool:
        document: Document = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": self._name, "labels": self._labels},
            "spec": self._spec(transitions=1, holder=self._identity),
        }
        try:
            await self._api.create(self._paths.leases, document)
        except ApiConflict:
            return False
        return True

    async def _write(self, document: Document, *, transitions: int, holder: str | None = None) -> bool:
        """Write the Lease unless somebody else did since it was read; return whether it was written."""
        before = int((document.get("spec") or {}).get("leaseTransitions") or 0)
        spec = self._spec(
            transitions=before + transitions, holder=self._identity if holder is None else holder
        )
        try:
            await self._api.replace(self._paths.lease(self._name), {**document, "spec": spec})
        except (ApiConflict, ApiMissing):
            return False
        return True

    def _spec(self, *, transitions: int, holder: str) -> Document:
        return {
            "holderIdentity": holder,
            "leaseDurationSeconds": int(self.lease_s),
            "renewTime": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
            "leaseTransitions": transitions,
        }
