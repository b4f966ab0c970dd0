"""`status`: what there is, at a glance."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from minicluster_hub.cluster import swarm
from minicluster_hub.cluster.commands import waiting
from minicluster_hub.cluster.daemon import Daemon
from minicluster_hub.cluster.errors import SwarmUnusable
from minicluster_hub.cluster.plan import objects, plan, record
from minicluster_hub.cluster.plan.record import Record
from minicluster_hub.engines.swarm.names import DATA_ROLE, ROLE_LABEL
from minicluster_hub.engines.swarm.view import SwarmNode, nodes_of
from minicluster_hub.launch.messages import say


def status(daemon: Daemon, given: argparse.Namespace) -> int:
    """Print nodes, services and counts; return 1 if there is no cluster or a service is not up."""
    if not daemon.call("info")["Swarm"].get("ControlAvailable"):
        raise SwarmUnusable("This machine manages no Swarm. Make a cluster with `up`, or ask on its manager.")
    known = record.load(daemon)
    if known is None:
        say("There is no cluster here: make one with `up`.")
        return 1
    if not objects.platform(daemon):
        say("The cluster is down; its data is kept. `up` starts it again.")
        return 1
    nodes = nodes_of(daemon.call("nodes"))
    tasks = waiting.look(daemon)
    services = [one for one in objects.platform(daemon) if _role(one) in plan.PLATFORM]
    services.sort(key=lambda one: plan.PLATFORM.index(_role(one)))
    standings = {_role(one): waiting.standing(_as_spec(one), tasks, nodes) for one in services}
    standings[DATA_ROLE] = data_agents(tasks, nodes)
    say("\n".join(report(known, nodes, standings, counts(tasks))))
    return int(any(not now.done for role, now in standings.items() if role not in plan.LATE))


def report(
    known: Record,
    nodes: Sequence[SwarmNode],
    standings: Mapping[str, waiting.Standing],
    running: Mapping[str, int],
) -> list[str]:
    """Return the lines to print."""
    homes = _homes(known, standings)
    address = next((node.address for node in nodes if node.id in homes), "?")
    has_image = standings["images"].reached if "images" in standings else frozenset[str]()
    lines = [
        f"URL       {known.choices.url(address)}",
        "",
        "node                 state     address          GPUs  engine   image",
    ]
    lines += [_node_line(node, node.id in has_image, node.id in homes) for node in nodes]
    lines += ["", "service      up      "]
    names = {node.id: node.name for node in nodes} if known.choices.shared_data else {}
    lines += [_service_line(role, now, names) for role, now in standings.items()]
    lines += [
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
            "The hub image is only on the manager: other nodes have no relay and get no image. Publish it"
            " (images/publish) and run upgrade --hub-image NAME."
        )
    return [*lines, *swarm.too_old(tuple(nodes))]


def _homes(known: Record, standings: Mapping[str, waiting.Standing]) -> frozenset[str]:
    """Return where browsers come in: the node with the data or, where managers share it, with the proxy."""
    if not known.choices.shared_data:
        return frozenset({known.manager_id})
    return standings["proxy"].reached if "proxy" in standings else frozenset()


def data_agents(tasks: Sequence[Mapping[str, Any]], nodes: Sequence[SwarmNode]) -> waiting.Standing:
    """Return on how many nodes the agents of data sets run, which the job service makes."""
    usable = frozenset(node.id for node in nodes if node.usable)
    there = frozenset(str(task.get("NodeID")) for task in tasks if _runs_as(task) == DATA_ROLE)
    return waiting.Standing(there & usable, len(usable))


def counts(tasks: Sequence[Mapping[str, Any]]) -> Counter[str]:
    """Return how many tasks run, by role."""
    return Counter(map(_runs_as, tasks))


def _runs_as(task: Mapping[str, Any]) -> str:
    """Return the role of a task that runs, "" of others."""
    if task["Status"]["State"] != "running":
        return ""
    return str((task["Spec"].get("ContainerSpec", {}).get("Labels") or {}).get(ROLE_LABEL, ""))


def _node_line(node: SwarmNode, has_image: bool, home: bool) -> str:
    state = "down" if not node.up else ("ready" if node.availability == "active" else node.availability)
    name = node.name + (" *" if home else "")
    image = "there" if has_image else "missing"
    return f"{name:<20} {state:<9} {node.address:<16} {len(node.gpus):>4}  {node.engine_version:<8} {image}"


def _service_line(role: str, now: waiting.Standing, names: Mapping[str, str]) -> str:
    """names: of the nodes, where it is of interest on which of them a service runs."""
    where = "on " + ", ".join(sorted(names.get(node_id, "?") for node_id in now.reached))
    told = where if names and now.total == now.done == 1 else ""
    what = "being fetched" if now.pulling else now.trouble or told
    return f"{role:<12} {now.done} of {now.total}  {what}".rstrip()


def _role(service: Mapping[str, Any]) -> str:
    return str(service["Spec"]["Labels"][ROLE_LABEL])


def _as_spec(service: Mapping[str, Any]) -> dict[str, Any]:
    """Return a service that is there in the form in which it was planned."""
    spec = service["Spec"]
    return {
        "name": spec["Name"],
        "labels": spec["Labels"],
        "mode": spec["Mode"],
        "task_template": {"Placement": {}, **spec["TaskTemplate"]},
    }
