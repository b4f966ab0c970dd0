"""`status`: nodes, services, images and jobs at a glance."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from minicluster_hub.cluster import swarm
from minicluster_hub.cluster.commands.service_progress import ServiceProgress, cluster_tasks, progress_of
from minicluster_hub.cluster.daemon import Daemon
from minicluster_hub.cluster.errors import SwarmUnusable
from minicluster_hub.cluster.plan import objects, plan, record
from minicluster_hub.cluster.plan.record import ClusterRecord
from minicluster_hub.engines.swarm.names import DATA_ROLE, ROLE_LABEL
from minicluster_hub.engines.swarm.view import SwarmNode
from minicluster_hub.launch.messages import echo


def status(daemon: Daemon, arguments: argparse.Namespace) -> int:
    """Print nodes, services and counts; return 1 if there is no cluster or a service is not up."""
    if not swarm.is_manager(daemon):
        raise SwarmUnusable(
            "This machine manages no Swarm. Make a cluster with `up`, or run status on a manager."
        )
    known = record.load(daemon)
    if known is None:
        echo("There is no cluster here: make one with `up`.")
        return 1
    services = {_role(one): one["Spec"] for one in objects.platform(daemon)}
    if not services:
        echo("The cluster is down; its data is still there. `up` starts it again.")
        return 1
    nodes, tasks = swarm.nodes(daemon), cluster_tasks(daemon)
    progress = {
        role: progress_of(_as_planned(services[role]), tasks, nodes)
        for role in plan.PLATFORM
        if role in services
    }
    progress[DATA_ROLE] = data_agents(tasks, nodes)
    running = Counter(map(_role_if_running, tasks))
    echo("\n".join(report(known, nodes, progress, running)))
    return int(any(not now.done for role, now in progress.items() if role not in plan.LATE))


def report(
    known: ClusterRecord,
    nodes: Sequence[SwarmNode],
    progress: Mapping[str, ServiceProgress],
    running: Mapping[str, int],
) -> list[str]:
    """Return the lines to print. progress: by service. running: counts of tasks, by role."""
    entries = _entry_nodes(known, progress)
    address = next((node.address for node in nodes if node.id in entries), "?")
    has_image = progress["images"].reached if "images" in progress else frozenset[str]()
    names = {node.id: node.name for node in nodes} if known.choices.shared_data else {}
    lines = [
        f"URL       {known.choices.url(address)}",
        "",
        "node                 state     address          GPUs  engine   image",
        *(_node_line(node, node.id in has_image, node.id in entries) for node in nodes),
        "",
        "service      up      ",
        *(_service_line(role, now, names) for role, now in progress.items()),
        "",
        f"notebook servers {running.get('server', 0)}, tasks of jobs {running.get('task', 0)}",
        f"hub image       {known.images.hub}",
        f"notebook image  {known.images.notebook}",
    ]
    if known.former:
        former = filter(None, (known.former.hub, known.former.notebook))
        lines.append(f"before the last upgrade: {', '.join(former)}")
    if not known.images.hub_is_published and len(nodes) > 1:
        lines.append(
            "The hub image is only on the manager: other nodes have no relay, so they cannot pull images."
            " Publish it (images/publish) and run upgrade --hub-image NAME."
        )
    return [*lines, *swarm.too_old(nodes)]


def _entry_nodes(known: ClusterRecord, progress: Mapping[str, ServiceProgress]) -> frozenset[str]:
    """Return the nodes for browsers: the one with the data; with shared data, the ones with the proxy."""
    if not known.choices.shared_data:
        return frozenset({known.manager_id})
    return progress["proxy"].reached if "proxy" in progress else frozenset()


def data_agents(tasks: Sequence[Mapping[str, Any]], nodes: Sequence[SwarmNode]) -> ServiceProgress:
    """Return the progress of the data set agents, which the job service starts."""
    usable = frozenset(node.id for node in nodes if node.usable)
    there = frozenset(str(task.get("NodeID")) for task in tasks if _role_if_running(task) == DATA_ROLE)
    return ServiceProgress(there & usable, len(usable))


def _role_if_running(task: Mapping[str, Any]) -> str:
    """Return the role of a running task; "" for others."""
    if task["Status"]["State"] != "running":
        return ""
    return str((task["Spec"].get("ContainerSpec", {}).get("Labels") or {}).get(ROLE_LABEL, ""))


def _node_line(node: SwarmNode, has_image: bool, is_entry: bool) -> str:
    state = "down" if not node.up else ("ready" if node.availability == "active" else node.availability)
    name = node.name + (" *" if is_entry else "")
    image = "there" if has_image else "missing"
    return f"{name:<20} {state:<9} {node.address:<16} {len(node.gpus):>4}  {node.engine_version:<8} {image}"


def _service_line(role: str, now: ServiceProgress, names: Mapping[str, str]) -> str:
    """Return a service's line. names: of nodes by id, to name the node of a single task; {}: omit it."""
    note = "being fetched" if now.pulling else now.trouble
    if names and not note and now.total == now.done == 1:
        note = "on " + ", ".join(sorted(names.get(node_id, "?") for node_id in now.reached))
    return f"{role:<12} {now.done} of {now.total}  {note}".rstrip()


def _role(service: Mapping[str, Any]) -> str:
    return str(service["Spec"]["Labels"][ROLE_LABEL])


def _as_planned(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Convert an existing service to the form of a planned one."""
    return {
        "name": spec["Name"],
        "labels": spec["Labels"],
        "mode": spec["Mode"],
        "task_template": {"Placement": {}, **spec["TaskTemplate"]},
    }
