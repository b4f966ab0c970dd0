"""Networks, configs and services as planned: made where missing, changed where different, else left alone."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from minicluster_hub.cluster.daemon import Daemon
from minicluster_hub.cluster.plan.drafts import Kept
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
_ROLE = "config"


def ensure_network(daemon: Daemon, spec: Mapping[str, Any]) -> str:
    """Make an overlay network."""
    if daemon.call("networks", names=[f"^{spec['name']}$"]):
        return SAME
    with suppress(DockerConflict):
        daemon.call("create_network", **spec)
    return MADE


def ensure_configs(daemon: Daemon, wanted: Mapping[str, str]) -> dict[str, Kept]:
    """Make the configs that are missing, each under a name that holds its content's hash."""
    there = {
        config["Spec"]["Name"]: config["ID"] for config in daemon.call("configs", filters=label_filter(_ROLE))
    }
    kept: dict[str, Kept] = {}
    for item, text in wanted.items():
        name = f"{CLUSTER}_{item}_{hashlib.sha256(text.encode()).hexdigest()[:12]}"
        known = (
            there.get(name) or daemon.call("create_config", name, text.encode(), labels=labels(_ROLE))["ID"]
        )
        kept[item] = Kept(known, name)
    return kept


def tidy_configs(daemon: Daemon, kept: Mapping[str, Kept]) -> None:
    """Remove configs that nothing uses any more."""
    ids = {one.id for one in kept.values()}
    for config in daemon.call("configs", filters=label_filter(_ROLE)):
        if config["ID"] not in ids:
            with suppress(DockerError):  # still in use by a container that is just ending: next time
                daemon.once("remove_config", config["ID"])


def ensure_service(daemon: Daemon, spec: Mapping[str, Any]) -> str:
    """Make a service, or give it its new specification; return which of both, or that nothing was to do."""
    try:
        there = daemon.call("inspect_service", spec["name"])
    except DockerMissing:
        with suppress(DockerConflict):
            daemon.call("create_service", **spec)
        return MADE
    if there["Spec"].get("Labels", {}).get(SPEC_LABEL) == spec["labels"][SPEC_LABEL]:
        return SAME
    daemon.call("update_service", there["ID"], version=there["Version"]["Index"], **spec)
    return CHANGED


def remove_unplanned(daemon: Daemon, planned: set[str]) -> list[str]:
    """Remove services of the platform that the choices do not ask for any more; return their names."""
    gone = []
    for service in platform(daemon):
        name = service["Spec"]["Name"]
        if name not in planned:
            daemon.remove("remove_service", service["ID"])
            gone.append(name)
    return gone


def platform(daemon: Daemon) -> list[Mapping[str, Any]]:
    """Return the platform's services that are there."""
    found = daemon.call("services", filters={"label": f"{CLUSTER_LABEL}={CLUSTER}"})
    return [one for one in found if _is_platform(one["Spec"])]


def _is_platform(spec: Mapping[str, Any]) -> bool:
    """A release before had one service for the agents of data sets; its name was that of their volume."""
    return spec["Labels"].get(ROLE_LABEL) in PLATFORM or spec["Name"] == DATA_VOLUME
