"""Makes the cluster's Swarm if it is missing, and checks that a command runs on the manager with the data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from minicluster_hub.cluster.containers import HUB_PROGRAM, run_once
from minicluster_hub.cluster.daemon import LEAST_VERSION_TEXT, Daemon, is_too_old
from minicluster_hub.cluster.errors import SwarmUnusable
from minicluster_hub.engines.swarm.docker import DockerError, DockerRefused
from minicluster_hub.engines.swarm.view import SwarmNode, nodes_of

_SEVERAL = "specify one with --advertise-addr"
_STATES = {
    "pending": "This engine is starting its Swarm, or waits for another manager. Try again in a minute.",
    "locked": "The Swarm of this machine is locked. Unlock it with: docker swarm unlock",
    "error": "The Swarm of this machine is broken ({error}). See the engine's log; leave it with"
    " `docker swarm leave --force` only if no other machine is in it.",
}


def is_manager(daemon: Daemon) -> bool:
    """Return whether this machine is a manager of a Swarm."""
    return bool(daemon.call("info")["Swarm"].get("ControlAvailable"))


def ensure(daemon: Daemon, advertise: str | None, helper_image: str) -> bool:
    """Make a Swarm if this machine is in none; return whether it was made. Raises SwarmUnusable."""
    swarm = daemon.call("info")["Swarm"]
    state = swarm["LocalNodeState"]
    if state in _STATES:
        raise SwarmUnusable(_STATES[state].format(error=swarm.get("Error", "")))
    if state == "active":
        _check_manager(swarm)
        return False
    _init(daemon, advertise, helper_image)
    return True


def _check_manager(swarm: Mapping[str, Any]) -> None:
    if not swarm.get("ControlAvailable"):
        managers = ", ".join(one["Addr"].rpartition(":")[0] for one in swarm.get("RemoteManagers") or ())
        raise SwarmUnusable(
            f"This machine is a worker of a Swarm, whose manager is {managers or 'elsewhere'}. Run the"
            " command there; or, to make a cluster of its own here, first: docker swarm leave"
        )


def _init(daemon: Daemon, advertise: str | None, helper_image: str) -> None:
    try:
        daemon.call("init_swarm", advertise_addr=advertise)
    except DockerRefused as error:
        if advertise or _SEVERAL not in error.message:
            raise SwarmUnusable(f"The engine made no Swarm: {error.message}") from error
        address = _default_route_address(daemon, helper_image)
        if not address:
            raise SwarmUnusable(
                f"This machine has several addresses and no default route. Give the one that other machines"
                f" reach by --advertise-addr. The engine says: {error.message}"
            ) from error
        _init(daemon, address, helper_image)


def _default_route_address(daemon: Daemon, helper_image: str) -> str:
    """Return the address of the machine's default route; "" if there is none."""
    try:
        code, output = run_once(daemon, helper_image, [*HUB_PROGRAM, "address"], network="host")
    except DockerError:
        return ""
    return "" if code else output


def this_node(daemon: Daemon) -> SwarmNode:
    """Return the node that the command runs on."""
    node_id = daemon.call("info")["Swarm"]["NodeID"]
    return next(node for node in nodes(daemon) if node.id == node_id)


def nodes(daemon: Daemon) -> tuple[SwarmNode, ...]:
    return nodes_of(daemon.call("nodes"))


def managers(daemon: Daemon) -> list[SwarmNode]:
    """Return the managers in a fixed order."""
    return sorted((node for node in nodes(daemon) if node.manager), key=lambda node: node.id)


def check_home(daemon: Daemon, manager_id: str, shared_data: str = "") -> None:
    """Raise SwarmUnusable unless the command runs on a manager that has the cluster's data."""
    here = this_node(daemon)
    if here.id == manager_id or shared_data:
        return
    home = next((node for node in nodes(daemon) if node.id == manager_id), None)
    if home is None:
        raise SwarmUnusable(
            f"The cluster's data lies on a node ({manager_id}) that is not in this Swarm any more. Bring it"
            " back; or restore its volumes here from a backup and run `down`, then `up`."
        )
    raise SwarmUnusable(
        f"The cluster's data lies on {home.name} ({home.address}); this is {here.name}. Run it there."
    )


def too_old(found: Sequence[SwarmNode]) -> list[str]:
    """Return a sentence for each node whose engine is too old for GPUs."""
    return [
        f"{node.name} has Docker Engine {node.engine_version}; install {LEAST_VERSION_TEXT} or newer there."
        for node in found
        if is_too_old(node.engine_version)
    ]


def join_command(daemon: Daemon) -> str:
    """Return the command that makes another machine a node."""
    worker = daemon.call("inspect_swarm")["JoinTokens"]["Worker"]
    swarm = daemon.call("info")["Swarm"]
    home = next(one for one in swarm["RemoteManagers"] if one["NodeID"] == swarm["NodeID"])
    return f"docker swarm join --token {worker} {home['Addr']}"
