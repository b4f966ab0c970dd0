"""`down`: ends everything that was made, by label, and waits until it is gone."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from minicluster_hub.cluster import swarm
from minicluster_hub.cluster.commands import waiting
from minicluster_hub.cluster.commands.steps import Steps
from minicluster_hub.cluster.daemon import Daemon, own_container, socket_on_host
from minicluster_hub.cluster.errors import ClusterError, OptionUnusable
from minicluster_hub.cluster.plan import objects, plan, record
from minicluster_hub.engines.swarm.docker import DockerConflict, DockerError, DockerMissing, DockerRefused
from minicluster_hub.engines.swarm.names import CLUSTER, CLUSTER_LABEL, ROLE_LABEL, label_filter
from minicluster_hub.launch.messages import say

_LOOK_S, _LIMIT_S = 0.5, 90.0
_OURS = {"label": f"{CLUSTER_LABEL}={CLUSTER}"}


def down(daemon: Daemon, given: argparse.Namespace) -> int:
    """Remove services, networks, secrets and configs; data, and what was chosen, only if asked for."""
    state = daemon.call("info")["Swarm"]
    if not state.get("ControlAvailable"):
        say("This machine manages no Swarm: there is nothing to take down.")
        return 0
    known = record.load(daemon)
    if known is not None:
        swarm.check_home(daemon, known.manager_id, known.choices.shared_data)
    if given.data:
        _confirm(given.yes)
    steps = Steps()
    _remove_services(daemon, steps)
    _sweep(daemon, known, steps, volumes=given.data)
    _remove_rest(daemon, steps, everything=given.data)
    _tell_what_stays(daemon, given)
    if given.leave:
        daemon.call("leave_swarm", force=True)
        say("Left the Swarm. On each other machine: docker swarm leave")
    return 0


def _confirm(yes: bool) -> None:
    if yes:
        return
    if not sys.stdin.isatty():
        raise OptionUnusable(
            "down --data removes accounts, jobs, data sets, images and everybody's home. "
            "If you mean it, add --yes."
        )
    say(
        "This removes accounts, jobs, data sets, images and everybody's home, on all nodes. "
        "Type: remove all data"
    )
    if input("> ").strip() != "remove all data":
        raise OptionUnusable("Nothing was removed.")


def _remove_services(daemon: Daemon, steps: Steps) -> None:
    """End hub and job service first, so that nothing new is started meanwhile."""
    with steps.step("services") as step:
        found = daemon.call("services", filters=_OURS)
        first = {plan.service_name(role) for role in ("hub", "service", "proxy")}
        for service in sorted(found, key=lambda one: one["Spec"]["Name"] not in first):
            daemon.remove("remove_service", service["ID"])
        left = _wait_gone(daemon, step.tell)
        step.end(f"{len(found)} ended", "removed" if found else "")
    if left:
        say(
            f"  WARNING: nodes that do not answer still count {left} tasks; they end when the nodes are back."
        )


def _wait_gone(daemon: Daemon, tell: Callable[[str], None]) -> int:
    """Wait until no task of ours is left on nodes that answer; return how many others there are."""
    deadline = time.monotonic() + _LIMIT_S
    while True:
        up = {node.id for node in swarm.nodes(daemon) if node.up}
        tasks = waiting.look(daemon)
        here = [task for task in tasks if task.get("NodeID") in up and not _over(task)]
        if not here and not _containers(daemon):
            return len(tasks)
        if time.monotonic() > deadline:
            raise ClusterError(
                f"{len(here)} tasks did not end within {_LIMIT_S:.0f} s. Run down again, or doctor."
            )
        tell(f"{len(here)} tasks still end")
        time.sleep(_LOOK_S)


def _over(task: Mapping[str, Any]) -> bool:
    return task["Status"]["State"] in ("complete", "failed", "shutdown", "rejected", "orphaned", "remove")


def _containers(daemon: Daemon) -> list[Any]:
    """Return the services' containers that are still on this machine."""
    return daemon.call(
        "containers", all=True, filters={"label": [f"{CLUSTER_LABEL}={CLUSTER}", "com.docker.swarm.task"]}
    )


def _remove_rest(daemon: Daemon, steps: Steps, *, everything: bool) -> None:
    """Remove networks, secrets and configs; the record of what was chosen belongs to the data."""
    with steps.step("networks") as step:
        count = _remove_all(daemon, "networks", "remove_network", "Id")
        step.end(f"{count}", "removed" if count else "")
    with steps.step("secrets, configs") as step:
        count = _remove_all(daemon, "secrets", "remove_secret", "ID")
        kept = None if everything else record.ROLE
        count += _remove_all(daemon, "configs", "remove_config", "ID", kept)
        step.end(f"{count}", "removed" if count else "")


def _remove_all(daemon: Daemon, listing: str, removal: str, key: str, kept_role: str | None = None) -> int:
    found = daemon.call(listing, filters=_OURS)
    if kept_role is not None:
        found = [one for one in found if one["Spec"]["Labels"].get(ROLE_LABEL) != kept_role]
    deadline = time.monotonic() + _LIMIT_S
    for one in found:
        while True:
            try:
                daemon.once(removal, one[key])
                break
            except DockerMissing:
                break
            except (DockerRefused, DockerConflict) as error:  # a container that is just ending still uses it
                if time.monotonic() > deadline:
                    raise ClusterError(f"{listing}: {error.message}. Run down again.") from error
            time.sleep(_LOOK_S)
    return len(found)


def _sweep(daemon: Daemon, known: record.Record | None, steps: Steps, *, volumes: bool) -> None:
    """Have each node remove the rules of its firewall, and its volumes of ours.

    The API of one engine reaches only its own: the node's engine is asked by a task of the hub image there.
    It is the one service beside the Docker proxy that has the engine's socket, and soon gone.
    """
    if known is None or not known.images.hub:
        say("  WARNING: no record of a hub image: only this machine is cleared up.")
        _remove_volumes(daemon, volumes=volumes)
        return
    path = socket_on_host(own_container(daemon))[0]
    spec = plan.sweep(known.images.hub, known.manager_id, path, volumes=volumes)
    with steps.step("volumes, firewall" if volumes else "firewall") as step:
        objects.ensure_service(daemon, spec)
        try:
            missed = _wait_swept(daemon, spec, step.tell)
        finally:
            daemon.remove("remove_service", spec["name"])
            _wait_gone(daemon, step.tell)
        _remove_volumes(daemon, volumes=volumes)
        step.end("of all nodes that answer", "removed")
    for name in missed:
        listing = f"docker volume ls -q -f label={CLUSTER_LABEL}={CLUSTER}"
        more = f", and its volumes. There: {listing} | xargs docker volume rm" if volumes else ""
        say(f"  WARNING: {name} kept the rules of its firewall until its next start{more}")


def _wait_swept(daemon: Daemon, spec: Mapping[str, Any], tell: Callable[[str], None]) -> list[str]:
    """Return the names of nodes that did not say in time that they are done."""
    deadline = time.monotonic() + _LIMIT_S
    while True:
        nodes = swarm.nodes(daemon)
        now = waiting.standing(spec, waiting.look(daemon), nodes)
        missed = [node.name for node in nodes if node.id not in now.reached]
        if now.done >= now.total or time.monotonic() > deadline:
            return missed
        tell(f"{now.done} of {now.total} nodes")
        time.sleep(_LOOK_S)


def _remove_volumes(daemon: Daemon, *, volumes: bool) -> None:
    """Remove this machine's volumes: all, or only those in which nothing is kept."""
    wanted = _OURS if volumes else label_filter(plan.SOCKETS_ROLE)
    for volume in (daemon.call("volumes", filters=wanted) or {}).get("Volumes") or ():
        with suppress(DockerError):
            daemon.once("remove_volume", volume["Name"])


def _tell_what_stays(daemon: Daemon, given: argparse.Namespace) -> None:
    if given.data:
        say("Ended. Nothing of the cluster is left but its images.")
        return
    kept = [one["Name"] for one in (daemon.call("volumes", filters=_OURS) or {}).get("Volumes") or ()]
    say(
        f"Ended. Kept on this machine: {', '.join(sorted(kept)) or 'no data'}; on each node its users' homes "
        "and its cache of data sets."
    )
    say("A plain `up` goes on with them, as it was. `down --data` removes them on all nodes.")
