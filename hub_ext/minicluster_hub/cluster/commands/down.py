"""`down`: removes everything with the cluster's label, and waits until it is gone."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from minicluster_hub.cluster import swarm
from minicluster_hub.cluster.commands.service_progress import cluster_tasks, progress_of
from minicluster_hub.cluster.commands.steps import Steps
from minicluster_hub.cluster.daemon import Daemon, own_container, socket_on_host
from minicluster_hub.cluster.errors import ClusterError, OptionUnusable
from minicluster_hub.cluster.plan import objects, plan, record
from minicluster_hub.cluster.plan.drafts import service_name
from minicluster_hub.engines.swarm.docker import DockerConflict, DockerError, DockerMissing, DockerRefused
from minicluster_hub.engines.swarm.names import CLUSTER, CLUSTER_LABEL, ROLE_LABEL, label_filter
from minicluster_hub.launch.messages import echo

_POLL_S, _LIMIT_S = 0.5, 90.0
_OURS = {"label": f"{CLUSTER_LABEL}={CLUSTER}"}
_ENDED = ("complete", "failed", "shutdown", "rejected", "orphaned", "remove")
_ALL_DATA = "accounts, jobs, data sets, images and everybody's home"


def down(daemon: Daemon, arguments: argparse.Namespace) -> int:
    """Remove services, networks, secrets and configs; with --data also data and the cluster's record."""
    if not swarm.is_manager(daemon):
        echo("This machine manages no Swarm: there is nothing to take down.")
        return 0
    known = record.load(daemon)
    if known is not None:
        swarm.check_home(daemon, known.manager_id, known.choices.shared_data)
    if arguments.data and not arguments.yes:
        _confirm()
    steps = Steps()
    _remove_services(daemon, steps)
    _sweep_nodes(daemon, known, steps, volumes=arguments.data)
    with steps.step("networks") as step:
        step.end(*_counted(_remove_all(daemon, "network", "Id")))
    with steps.step("secrets, configs") as step:
        # The cluster's record belongs to the data.
        count = _remove_all(daemon, "secret", "ID")
        count += _remove_all(daemon, "config", "ID", kept_role=None if arguments.data else record.ROLE)
        step.end(*_counted(count))
    _print_what_remains(daemon, data=arguments.data)
    if arguments.leave:
        daemon.call("leave_swarm", force=True)
        echo("Left the Swarm. On each other machine: docker swarm leave")
    return 0


def _confirm() -> None:
    if not sys.stdin.isatty():
        raise OptionUnusable(f"down --data removes {_ALL_DATA}. If you mean it, add --yes.")
    echo(f"This removes {_ALL_DATA}, on all nodes. Type: remove all data")
    if input("> ").strip() != "remove all data":
        raise OptionUnusable("Nothing was removed.")


def _counted(count: int, what: str = "") -> tuple[str, str]:
    """Return detail and change of a step that removed `count` objects."""
    return f"{count}{what}", "removed" if count else ""


def _remove_services(daemon: Daemon, steps: Steps) -> None:
    """Remove hub and job service before the others, so that they start no new services."""
    with steps.step("services") as step:
        found = daemon.call("services", filters=_OURS)
        first = {service_name(role) for role in ("hub", "service", "proxy")}
        for service in sorted(found, key=lambda one: one["Spec"]["Name"] not in first):
            daemon.remove("remove_service", service["ID"])
        left = _wait_gone(daemon, step.waits_for)
        step.end(*_counted(len(found), " ended"))
    if left:
        echo(f"  WARNING: {left} tasks are on nodes that do not answer; they end when the nodes are back.")


def _wait_gone(daemon: Daemon, show: Callable[[str], None]) -> int:
    """Wait until no node that answers has a task of ours; return the number of tasks on other nodes."""
    deadline = time.monotonic() + _LIMIT_S
    of_services = {"label": [_OURS["label"], "com.docker.swarm.task"]}
    while True:
        answering = {node.id for node in swarm.nodes(daemon) if node.up}
        tasks = cluster_tasks(daemon)
        left = [
            task
            for task in tasks
            if task.get("NodeID") in answering and task["Status"]["State"] not in _ENDED
        ]
        if not left and not daemon.call("containers", all=True, filters=of_services):
            return len(tasks)
        if time.monotonic() > deadline:
            raise ClusterError(
                f"{len(left)} tasks did not end within {_LIMIT_S:.0f} s. Run down again, or doctor."
            )
        show(f"{len(left)} tasks still end")
        time.sleep(_POLL_S)


def _remove_all(daemon: Daemon, kind: str, key: str, kept_role: str | None = None) -> int:
    found = daemon.call(f"{kind}s", filters=_OURS)
    if kept_role is not None:
        found = [one for one in found if one["Spec"]["Labels"].get(ROLE_LABEL) != kept_role]
    deadline = time.monotonic() + _LIMIT_S
    for one in found:
        while True:
            try:
                with suppress(DockerMissing):
                    daemon.once(f"remove_{kind}", one[key])
                break
            except (DockerRefused, DockerConflict) as error:  # a container that is ending still uses it
                if time.monotonic() > deadline:
                    raise ClusterError(f"{kind}s: {error.message}. Run down again.") from error
            time.sleep(_POLL_S)
    return len(found)


def _sweep_nodes(daemon: Daemon, known: record.ClusterRecord | None, steps: Steps, *, volumes: bool) -> None:
    """Remove each node's firewall rules and, with `volumes`, our volumes.

    An engine's API covers only its own machine, so a task of the hub image runs on each node and calls that
    engine. Like the Docker proxy and the disk guard, it has the engine's socket; it ends at once.
    """
    if known is None or not known.images.hub:
        echo("  WARNING: no record of a hub image: only this machine is cleaned up.")
        _remove_volumes(daemon, everything=volumes)
        return
    path, _ = socket_on_host(own_container(daemon))
    spec = plan.sweep(known.images.hub, known.manager_id, path, volumes=volumes)
    with steps.step("volumes, firewall" if volumes else "firewall") as step:
        objects.ensure_service(daemon, spec)
        try:
            missed = _wait_swept(daemon, spec, step.waits_for)
        finally:
            daemon.remove("remove_service", spec["name"])
            _wait_gone(daemon, step.waits_for)
        _remove_volumes(daemon, everything=volumes)
        step.end("of all nodes that answer", "removed")
    for name in missed:
        listing = f"docker volume ls -q -f label={_OURS['label']}"
        more = f", and its volumes. There: {listing} | xargs docker volume rm" if volumes else ""
        echo(f"  WARNING: {name} keeps its firewall rules until its next start{more}")


def _wait_swept(daemon: Daemon, spec: Mapping[str, Any], show: Callable[[str], None]) -> list[str]:
    """Wait until the nodes are done; return the names of the nodes that took too long."""
    deadline = time.monotonic() + _LIMIT_S
    while True:
        nodes = swarm.nodes(daemon)
        now = progress_of(spec, cluster_tasks(daemon), nodes)
        if now.done >= now.total or time.monotonic() > deadline:
            return [node.name for node in nodes if node.id not in now.reached]
        show(f"{now.done} of {now.total} nodes")
        time.sleep(_POLL_S)


def _volumes(daemon: Daemon, filters: Mapping[str, Any]) -> list[str]:
    """Return the names of this machine's volumes."""
    return [one["Name"] for one in (daemon.call("volumes", filters=filters) or {}).get("Volumes") or ()]


def _remove_volumes(daemon: Daemon, *, everything: bool) -> None:
    """Remove this machine's volumes: all, or only those without data."""
    for name in _volumes(daemon, _OURS if everything else label_filter(plan.SOCKETS_ROLE)):
        with suppress(DockerError):
            daemon.once("remove_volume", name)


def _print_what_remains(daemon: Daemon, *, data: bool) -> None:
    if data:
        echo("Ended. Nothing of the cluster is left but its images.")
        return
    kept = ", ".join(sorted(_volumes(daemon, _OURS))) or "no data"
    echo(f"Ended. Kept on this machine: {kept}; on each node: users' homes and the cache of data sets.")
    echo("`up` without options starts the cluster with them again. `down --data` removes them on all nodes.")
