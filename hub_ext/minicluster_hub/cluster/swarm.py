"""The Swarm under the cluster: made if there is none, and only used from its first manager."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from minicluster_hub.cluster.daemon import LEAST_VERSION, Daemon, version_numbers
from minicluster_hub.cluster.errors import ImageUnusable, SwarmUnusable
from minicluster_hub.engines.swarm.docker import DockerError, DockerRefused
from minicluster_hub.engines.swarm.view import SwarmNode, nodes_of

_SEVERAL = "specify one with --advertise-addr"
_STATES = {
    "pending": "This engine is just starting its Swarm, or waits for another manager. Try again in a minute.",
    "locked": "The Swarm of this machine is locked. Unlock it with: docker swarm unlock",
    "error": "The Swarm of this machine is broken ({error}). See the engine's log; leave it with"
    " `docker swarm leave --force` only if no other machine is in it.",
}


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
                f"This machine has several addresses, and no default route that tells which one the other"
                f" machines reach. Name it with --advertise-addr. The engine says: {error.message}"
            ) from error
        _init(daemon, address, helper_image)


def _default_route_address(daemon: Daemon, helper_image: str) -> str:
    """Return the address that the machine itself uses to reach the outside; "" if it has no way there."""
    try:
        return run_on_host(daemon, helper_image, ["run", "address"])
    except (DockerError, ImageUnusable):
        return ""


def run_on_host(daemon: Daemon, image: str, args: list[str]) -> str:
    """Run a command of the hub image in this machine's own network; return what it printed."""
    container = daemon.call(
        "create_container", image, args, host_config=daemon.call("create_host_config", network_mode="host")
    )["Id"]
    try:
        daemon.call("start", container)
        daemon.call("wait", container, timeout=30)
        return daemon.call("logs", container, stdout=True, stderr=False).decode().strip()
    finally:
        daemon.call("remove_container", container, force=True)


def this_node(daemon: Daemon) -> SwarmNode:
    """Return the node that the command runs on."""
    node_id = daemon.call("info")["Swarm"]["NodeID"]
    return next(node for node in nodes(daemon) if node.id == node_id)


def nodes(daemon: Daemon) -> tuple[SwarmNode, ...]:
    return nodes_of(daemon.call("nodes"))


def managers(daemon: Daemon) -> list[SwarmNode]:
    """Return the managers, in an order that stays."""
    ids = {node["ID"] for node in daemon.call("nodes") if node["Spec"]["Role"] == "manager"}
    return sorted((node for node in nodes(daemon) if node.id in ids), key=lambda node: node.id)


def check_home(daemon: Daemon, manager_id: str, shared_data: str = "") -> None:
    """See that the command runs on a manager that has the cluster's data. Raises SwarmUnusable."""
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


def too_old(found: tuple[SwarmNode, ...]) -> list[str]:
    """Return a sentence for each node whose engine is too old for GPUs."""
    least = ".".join(map(str, LEAST_VERSION))
    return [
        f"{node.name} has Docker Engine {node.engine_version}; install {least} or newer there."
        for node in found
        if version_numbers(node.engine_version) < LEAST_VERSION
    ]


def join_command(daemon: Daemon) -> str:
    """Return what makes another machine a node."""
    worker = daemon.call("inspect_swarm")["JoinTokens"]["Worker"]
    swarm = daemon.call("info")["Swarm"]
    home = next(one for one in swarm["RemoteManagers"] if one["NodeID"] == swarm["NodeID"])
    return f"docker swarm join --token {worker} {home['Addr']}"
