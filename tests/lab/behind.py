"""Looking behind the curtain: the job service's rows, and what the engines know of tasks and servers."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from docker.errors import NotFound

from minicluster_hub.engines.swarm.names import (
    CLUSTER_FILTER,
    OWNER_LABEL,
    ROLE_LABEL,
    gang_network,
    server_name,
    task_name,
)

from .cluster import LabCluster
from .machines import Lab, Node

_QUERY = """import json, sqlite3, sys
store = sqlite3.connect("file:/srv/minicluster/service/minicluster.sqlite?mode=ro", uri=True)
print(json.dumps([store.execute(sql).fetchall() for sql in json.loads(sys.argv[1])]))"""
_OPEN_JOBS = "SELECT id, owner, state FROM jobs WHERE state NOT IN ('succeeded', 'failed', 'stopped')"
_TASKS = "SELECT id, gang_id FROM tasks WHERE state != 'ended'"
_SERVERS = "SELECT owner, name FROM servers"
_SETTLED_S = 60.0


def query(cluster: LabCluster, *statements: str) -> list[list[list[Any]]]:
    """Ask the job service's database, all statements at once, beside the service."""
    (container,) = cluster.docker("ps", "--quiet", "--filter", f"label={ROLE_LABEL}=service")
    said = cluster.docker("exec", container, "python", "-c", _QUERY, json.dumps(statements))
    return json.loads(said[0])


@dataclass(frozen=True, eq=False)
class Container:
    """A running container of the cluster. gpus: those that Swarm gave it."""

    id: str
    node: str
    labels: dict[str, str]
    environment: dict[str, str]

    @property
    def role(self) -> str:
        return self.labels[ROLE_LABEL]

    @property
    def owner(self) -> str:
        return self.labels.get(OWNER_LABEL, "")

    @property
    def gpus(self) -> tuple[str, ...]:
        told = self.environment.get("DOCKER_RESOURCE_GPU", "")
        return tuple(told.split(",")) if told else ()


def containers(lab: Lab) -> list[Container]:
    """Return the cluster's running containers on all nodes."""
    return [found for node in lab.nodes for found in _containers(node)]


def _containers(node: Node) -> list[Container]:
    with node.docker() as client:
        found: list[Container] = []
        for one in client.containers(filters=CLUSTER_FILTER):
            with suppress(NotFound):  # It ended meanwhile.
                found.append(_container(node.name, client.inspect_container(one["Id"])))
        return found


def _container(node: str, found: dict[str, Any]) -> Container:
    environment = dict(line.partition("=")[::2] for line in found["Config"]["Env"])
    return Container(found["Id"], node, found["Config"]["Labels"], environment)


def unmatched(cluster: LabCluster) -> list[str]:
    """Return what is in the Swarm without its row, and rows without what they stand for."""
    tasks, servers = query(cluster, _TASKS, _SERVERS)
    names = {task_name(task) for task, _ in tasks}
    pairs = {
        "task services": (set(cluster.services("task")), names),
        "task secrets": (_named(cluster, "secret", "task"), names),
        "gang networks": (_named(cluster, "network", "gang"), {gang_network(gang) for _, gang in tasks}),
        "servers": (set(cluster.services("server")), {server_name(*server) for server in servers}),
    }
    return [
        f"{what}: {sorted(there)} are there, rows: {sorted(rows)}"
        for what, (there, rows) in pairs.items()
        if there != rows
    ]


def _named(cluster: LabCluster, kind: str, role: str) -> set[str]:
    return set(cluster.docker(kind, "ls", "--filter", f"label={ROLE_LABEL}={role}", "--format", "{{.Name}}"))


def check_nothing_left(cluster: LabCluster) -> None:
    """All jobs are over; nothing is in the Swarm without its row, and no row without its thing."""
    wait_none(lambda: query(cluster, _OPEN_JOBS)[0], "jobs are not over")
    wait_none(lambda: unmatched(cluster), "what is there and the rows differ")


def wait_none(left: Callable[[], Sequence[object]], what: str, within_s: float = _SETTLED_S) -> None:
    """Wait until nothing is left."""
    until = time.monotonic() + within_s
    while found := left():
        assert time.monotonic() < until, f"{what}, after {within_s:g} s: {found}"
        time.sleep(0.3)
