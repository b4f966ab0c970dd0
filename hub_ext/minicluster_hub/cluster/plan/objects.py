"""Makes missing networks, configs and services of the plan, and changes different ones."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Literal

from minicluster_hub.cluster.daemon import Daemon
from minicluster_hub.cluster.plan.drafts import SwarmObject
from minicluster_hub.cluster.plan.plan import PLATFORM
from minicluster_hub.engines.swarm.docker import DockerConflict, DockerError, DockerMissing
from minicluster_hub.engines.swarm.names import (
    CLUSTER,
    CLUSTER_LABEL,
    DATA_VOLUME,
    ROLE_LABEL,
    SPEC_LABEL,
    label_filter,
    labels,
)

MADE, CHANGED, SAME = "made", "changed", "unchanged"
_CONFIG_ROLE = "config"


def ensure_network(daemon: Daemon, spec: Mapping[str, Any]) -> str:
    """Make an overlay network if it is missing; return whether it was made."""
    if daemon.call("networks", names=[f"^{spec['name']}$"]):
        return SAME
    with suppress(DockerConflict):
        daemon.call("create_network", **spec)
    return MADE


def ensure_configs(daemon: Daemon, wanted: Mapping[str, str]) -> dict[str, SwarmObject]:
    """Make the configs that are missing, each under a name with the hash of its content."""
    found = daemon.call("configs", filters=label_filter(_CONFIG_ROLE))
    ids = {config["Spec"]["Name"]: config["ID"] for config in found}
    configs: dict[str, SwarmObject] = {}
    for item, text in wanted.items():
        name = f"{CLUSTER}_{item}_{hashlib.sha256(text.encode()).hexdigest()[:12]}"
        if name not in ids:
            made = daemon.call("create_config", name, text.encode(), labels=labels(_CONFIG_ROLE))
            ids[name] = made["ID"]
        configs[item] = SwarmObject(ids[name], name)
    return configs


def remove_unused(daemon: Daemon, kind: Literal["secret", "config"], used: Mapping[str, SwarmObject]) -> None:
    """Remove secrets or configs that no service uses any more."""
    ids = {one.id for one in used.values()}
    for found in daemon.call(f"{kind}s", filters=label_filter(kind)):
        if found["ID"] not in ids:
            with suppress(DockerError):  # a container that is ending still uses it: next time
                daemon.once(f"remove_{kind}", found["ID"])


def ensure_service(daemon: Daemon, spec: Mapping[str, Any]) -> str:
    """Make or update a service; return whether it was made, changed or unchanged."""
    try:
        found = daemon.call("inspect_service", spec["name"])
    except DockerMissing:
        with suppress(DockerConflict):
            daemon.call("create_service", **spec)
        return MADE
    if found["Spec"].get("Labels", {}).get(SPEC_LABEL) == spec["labels"][SPEC_LABEL]:
        return SAME
    daemon.call("update_service", found["ID"], version=found["Version"]["Index"], **spec)
    return CHANGED


def remove_unplanned(daemon: Daemon, planned: set[str]) -> list[str]:
    """Remove services of the platform that the choices no longer need; return their names."""
    unplanned = {
        service["Spec"]["Name"]: service["ID"]
        for service in platform(daemon)
        if service["Spec"]["Name"] not in planned
    }
    for service_id in unplanned.values():
        daemon.remove("remove_service", service_id)
    return list(unplanned)


def platform(daemon: Daemon) -> list[Mapping[str, Any]]:
    """Return the existing services of the platform.

    A former release had one service for all data set agents, named like their volume.
    """
    found = daemon.call("services", filters={"label": f"{CLUSTER_LABEL}={CLUSTER}"})
    return [
        one
        for one in found
        if one["Spec"]["Labels"].get(ROLE_LABEL) in PLATFORM or one["Spec"]["Name"] == DATA_VOLUME
    ]
