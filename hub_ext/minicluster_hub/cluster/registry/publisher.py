"""The login that may write to the cluster's registry. Docker gives a secret only to services that use it."""

from __future__ import annotations

import time
from contextlib import suppress

from minicluster_hub.cluster.containers import run_in_service
from minicluster_hub.cluster.daemon import Daemon
from minicluster_hub.cluster.errors import ClusterError, ClusterMissing
from minicluster_hub.cluster.plan import objects, plan
from minicluster_hub.cluster.plan.drafts import SwarmObject, service_name
from minicluster_hub.cluster.plan.record import ClusterRecord
from minicluster_hub.cluster.registry.relay import HOST, RELAY_PUBLISH_PORT

ADDRESS = f"{HOST}:{RELAY_PUBLISH_PORT}"
_SECRET = "registry_publisher"  # noqa: S105 - its name
_POLL_S, _LIMIT_S = 0.3, 60.0


def login(daemon: Daemon, known: ClusterRecord, node_id: str) -> dict[str, str]:
    """Return name and password. node_id: of this machine. Raises ClusterError."""
    try:
        text = _read_in(daemon, "registry")
    except ClusterMissing:
        if not known.choices.shared_data:
            raise
        text = _read_here(daemon, known.images.hub, node_id)
    name, _, password = text.partition(":")
    return {"username": name, "password": password}


def _read_in(daemon: Daemon, role: str) -> str:
    return run_in_service(daemon, role, ["cat", f"/run/secrets/{_SECRET}"])[1]


def _read_here(daemon: Daemon, image: str, node_id: str) -> str:
    """Read the secret through a service on this node, since the registry runs on another manager."""
    spec = plan.publisher(image, node_id, _secret_of_registry(daemon))
    daemon.remove("remove_service", spec["name"])  # left by an interrupted command
    objects.ensure_service(daemon, spec)
    deadline = time.monotonic() + _LIMIT_S
    try:
        while time.monotonic() < deadline:
            with suppress(ClusterMissing):
                return _read_in(daemon, "publisher")
            time.sleep(_POLL_S)
    finally:
        daemon.remove("remove_service", spec["name"])
    raise ClusterError(
        f"The registry's password did not come to this machine within {_LIMIT_S:.0f} s. See status, and try"
        " again."
    )


def _secret_of_registry(daemon: Daemon) -> SwarmObject:
    """Return the secret that the running registry uses."""
    service = daemon.call("inspect_service", service_name("registry"))
    secrets = service["Spec"]["TaskTemplate"]["ContainerSpec"]["Secrets"]
    found = next(one for one in secrets if one["File"]["Name"] == _SECRET)
    return SwarmObject(found["SecretID"], found["SecretName"])
