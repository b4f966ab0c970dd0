"""Behind the user's view: the job service's database, and the engines' containers of tasks and servers."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from docker.errors import NotFound

from minicluster_hub.engines.swarm.names import CLUSTER_FILTER, OWNER_LABEL, ROLE_LABEL

from .cluster import LabCluster
from .machines import Lab, Node

_QUERY = """import json, sqlite3, sys
store = sqlite3.connect("file:/srv/minicluster/service/minicluster.sqlite?mode=ro", uri=True)
print(json.dumps([store.execute(sql).fetchall() for sql in json.loads(sys.argv[1])]))"""


def query(cluster: LabCluster, *statements: str) -> list[list[list[Any]]]:
    """Run SQL statements in the job service's container; return the rows of each."""
    (container,) = cluster.docker("ps", "--quiet", "--filter", f"label={ROLE_LABEL}=service")
    lines = cluster.docker("exec", container, "python", "-c", _QUERY, json.dumps(statements))
    return json.loads(lines[0])


@dataclass(frozen=True, eq=False)
class Container:
    """A running container of the cluster. gpus: the ids that Swarm assigned to it."""

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
        setting = self.environment.get("DOCKER_RESOURCE_GPU", "")
        return tuple(setting.split(",")) if setting else ()


def containers(lab: Lab) -> list[Container]:
    """Return the cluster's running containers on all nodes."""
    return [found for node in lab.nodes for found in _containers(node)]


def _containers(node: Node) -> list[Container]:
    with node.docker() as client:
        found: list[Container] = []
        for one in client.containers(filters=CLUSTER_FILTER):
            with suppress(NotFound):  # The container ended meanwhile.
                found.append(_container(node.name, client.inspect_container(one["Id"])))
        return found


def _container(node: str, found: dict[str, Any]) -> Container:
    environment = dict(line.partition("=")[::2] for line in found["Config"]["Env"])
    return Container(found["Id"], node, found["Config"]["Labels"], environment)
