"""The secrets of containers, and what a Docker socket or a shell shows to other users."""

from __future__ import annotations

import base64
import json
import re
from contextlib import suppress
from typing import Any

from docker.errors import NotFound

from ..behind import Container, containers
from ..cluster import LabCluster

_PRINT = 'for file in /run/secrets/*; do echo "== $file"; cat "$file"; echo; done'
_ENVIRONMENTS = "cat /proc/[0-9]*/environ | tr '\\0' '\\n'"
_KINDS = ("service", "network", "secret", "config", "node", "volume")
_PUBLIC = re.compile(r"cert|\.crt|_ca$")
_SHORTEST = 16


def secrets(cluster: LabCluster) -> dict[Container, set[str]]:
    """Return the secret values that each running container has."""
    return {
        container: set(_values(_inside(cluster, container, _PRINT))) for container in containers(cluster.lab)
    }


def _values(printed: str) -> list[str]:
    found: list[str] = []
    for part in printed.split("== /run/secrets/")[1:]:
        name, _, content = part.partition("\n")
        if name.endswith(".json"):
            environment = json.loads(content)["env"]
            found += [value for key, value in environment.items() if key.endswith("TOKEN")]
        elif not _PUBLIC.search(name):
            found += [word for word in re.split(r"[\s:]+", content) if len(word) >= _SHORTEST]
    return found


def environments(cluster: LabCluster, container: Container) -> str:
    """Return the environments of all processes of a container."""
    return _inside(cluster, container, _ENVIRONMENTS)


def inspections(cluster: LabCluster) -> list[Any]:
    """Return the output of `docker inspect` for all objects of the Swarm and all containers of the nodes."""
    found = [_inspect(cluster, kind) for kind in _KINDS]
    for config in found[_KINDS.index("config")]:
        config["Spec"]["Data"] = base64.b64decode(config["Spec"]["Data"]).decode()
    for node in cluster.lab.nodes:
        with node.docker() as client:
            for one in client.containers(all=True):
                with suppress(NotFound):  # It was removed meanwhile.
                    found.append(client.inspect_container(one["Id"]))
    return found


def _inspect(cluster: LabCluster, kind: str) -> Any:
    names = cluster.docker(kind, "ls", "--quiet")
    if not names:
        return []
    result = cluster.first.run(["docker", kind, "inspect", *names], check=False)
    # If one was removed meanwhile, the output still has the others.
    assert not result.returncode or set(names) - set(cluster.docker(kind, "ls", "--quiet")), result.stderr
    return json.loads(result.stdout)


def _inside(cluster: LabCluster, container: Container, script: str) -> str:
    node = next(node for node in cluster.lab.nodes if node.name == container.node)
    return "\n".join(cluster.docker("exec", container.id, "sh", "-c", script, node=node))
