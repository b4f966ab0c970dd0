"""Remains of an earlier job service in a Swarm: found by labels, removed by name."""

from __future__ import annotations

import logging
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from minicluster_hub.engines.node_tokens import NodeTokens
from minicluster_hub.engines.swarm.data_agents import SwarmDataAgents, agent_name
from minicluster_hub.engines.swarm.docker import Docker, DockerMissing, DockerRefused
from minicluster_hub.engines.swarm.engine import SwarmEngine
from minicluster_hub.engines.swarm.names import DATA_ROLE, ROLE_LABEL, gang_network, labels, task_name
from minicluster_hub.engines.swarm.networks import GangNetworks
from minicluster_hub.engines.swarm.reflector import Reflector
from minicluster_hub.engines.swarm.spec import TaskSettings

from ...patience import eventually
from .swarm_nodes import node

LOG = logging.getLogger(__name__)
KINDS = ("service", "secret", "network")


class NamedDocker(Docker):
    """Services, secrets and networks by name. Like the Docker proxy, it refuses removal by id.

    busy: number of further removals that are refused, since the object is in use.
    """

    def __init__(self) -> None:
        super().__init__(connect=lambda: SimpleNamespace(close=lambda: None), retry_s=0.0)
        self.there: dict[str, dict[str, dict[str, Any]]] = {kind: {} for kind in KINDS}
        self.busy = 0

    def watch(self, kind: str, on_event: Callable[[], None]) -> Any:
        return SimpleNamespace(close=lambda: None)

    async def call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        verb, _, kind = method.partition("_")
        if verb == "create":
            name = args[0] if args else kwargs["name"]
            self.there[kind][name] = kwargs
            return {"ID": f"id-of-{name}"}
        if verb == "remove":
            return self._remove(kind, args[0])
        return self._listed(method.removesuffix("s"), kwargs.get("filters"))

    def _remove(self, kind: str, name: str) -> None:
        if name.startswith("id-of-"):
            raise DockerRefused("Minicluster's Docker proxy refuses this call")
        if self.busy:
            self.busy -= 1
            raise DockerRefused(f"{name} is in use")
        if self.there[kind].pop(name, None) is None:
            raise DockerMissing(name)

    def _listed(self, kind: str, filters: Any) -> list[dict[str, Any]]:
        return [
            {
                "ID": f"id-of-{name}",
                "Id": f"id-of-{name}",
                "Name": name,
                "Labels": one["labels"],
                "Spec": {"Name": name, "Labels": one["labels"]},
            }
            for name, one in self.there.get(kind, {}).items()
            if f"{ROLE_LABEL}={one['labels'][ROLE_LABEL]}" in filters["label"]
        ]


@pytest.fixture
def docker() -> NamedDocker:
    return NamedDocker()


async def test_secrets_and_networks_of_starts_that_were_cut_off_go(
    docker: NamedDocker, monkeypatch: pytest.MonkeyPatch
) -> None:
    docker.there["secret"][task_name(12)] = {"labels": labels("task", task=12, gang=4)}
    docker.there["network"][gang_network(4)] = {"labels": labels("gang", gang=4)}
    monkeypatch.setattr(Docker, "connect", lambda *arguments: docker)
    engine = SwarmEngine(image="image")
    await engine.open()
    assert not docker.there["secret"] and not docker.there["network"]
    await engine.close()


async def test_the_network_goes_with_the_last_task_also_late(docker: NamedDocker) -> None:
    networks = GangNetworks(docker, LOG)
    for task_id in (1, 2):
        networks.add_task(4, task_id)
    await networks.make(4)
    await networks.release(4, 1)
    assert list(docker.there["network"]) == [gang_network(4)]
    docker.busy = 2
    await networks.release(4, 2)
    assert not docker.there["network"]


async def test_a_network_that_is_used_again_before_it_could_be_removed_stays(
    docker: NamedDocker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("minicluster_hub.engines.swarm.networks._RETRY_S", (0.0,))
    networks = GangNetworks(docker, LOG)
    networks.add_task(4, 1)
    await networks.make(4)
    docker.busy = 1
    await networks.release(4, 1)
    networks.add_task(4, 2)
    networks.sweep_soon()
    await networks.find_unused()
    await networks.close()
    assert list(docker.there["network"]) == [gang_network(4)]
    await networks.release(4, 2)
    assert not docker.there["network"]


async def test_a_keeper_that_a_former_release_made_with_another_command_is_made_anew(
    docker: NamedDocker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def command() -> list[str]:
        made = docker.there["service"].get(name, {"task_template": {"ContainerSpec": {"Command": []}}})
        return made["task_template"]["ContainerSpec"]["Command"]

    def agents() -> SwarmDataAgents:
        settings = TaskSettings(image="image")
        return SwarmDataAgents(docker, view, lambda: settings, LOG, lambda: None)

    view, name = Reflector(docker, role="task"), agent_name(node(1).id)
    view.nodes = (node(1),)
    url, tokens = "https://10.0.0.1:8083/", NodeTokens("secret")
    former = ["python", "-P", "-m", "minicluster.runtime.node.data_agent"]
    with monkeypatch.context() as before:
        before.setattr("minicluster_hub.engines.swarm.data_agents.AGENT_COMMAND", former)
        first = agents()
        first.ensure_running((url,), tokens, needed=False)
        await eventually(lambda: command() == former)
        await first.close()
    second = agents()
    await second.open()
    second.ensure_running((url,), tokens, needed=False)
    await eventually(lambda: "-s" in command())
    await second.close()
    assert docker.there["secret"][name]["labels"] == labels(DATA_ROLE)
