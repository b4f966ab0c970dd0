"""Placeholders for the GPUs of notebook servers in a Swarm: created, found again, removed before reuse."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from types import SimpleNamespace
from typing import Any

import pytest

from minicluster_hub.engines.base import GpusRefused
from minicluster_hub.engines.swarm.docker import Docker, DockerConflict, DockerMissing
from minicluster_hub.engines.swarm.gpus import holds as server_gpus
from minicluster_hub.engines.swarm.gpus.holds import SwarmGpuHolds, holder_name, holder_spec
from minicluster_hub.engines.swarm.gpus.sharing import SwarmSharedGpus
from minicluster_hub.engines.swarm.names import server_name
from minicluster_hub.engines.swarm.reflector import Reflector
from minicluster_hub.engines.swarm.spec import TaskSettings
from minicluster_hub.engines.swarm.view import SwarmNode
from minicluster_hub.jobs.records import ServerRecord

NODE = SwarmNode("n1", "pc-1", "10.0.0.1", True, True, "active", ("GPU-a", "GPU-b"), {}, "26.1.5", 2**34, 4.0)
SERVER = ServerRecord(3, "ada", "", "pc-1", (0, 1), None, 1.0)
SETTINGS = TaskSettings(image="127.0.0.1:5100/minicluster/notebook@sha256:" + "a" * 64)
NO_ROOM = "no suitable node (insufficient resources on 1 node)"


class OneNode(Docker):
    """A Swarm that shows a task's GPUs only at the second query, as the real one does."""

    def __init__(self) -> None:
        super().__init__(connect=lambda: SimpleNamespace(close=lambda: None), retry_s=0.0)
        self.services: dict[str, dict[str, Any]] = {}
        self.leaving: list[dict[str, Any]] = []
        self.room = True
        self.looks = 0

    async def call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        await asyncio.sleep(0)
        return getattr(self, f"_{method}")(*args, **kwargs)

    def _create_service(self, **spec: Any) -> dict[str, Any]:
        if spec["name"] in self.services:
            raise DockerConflict("name conflicts with an existing object")
        self.services[spec["name"]] = spec
        self.looks = 0
        return {"ID": spec["name"]}

    def _remove_service(self, name: str) -> None:
        if name not in self.services:
            raise DockerMissing(f"service {name} not found")
        self.leaving.append(self._task(self.services.pop(name)))

    def _tasks(self, filters: Any) -> list[dict[str, Any]]:
        assert "org.minicluster.role=gpus" in filters["label"]
        self.looks += 1
        if self.looks > 3:
            self.leaving.clear()
        return [*self.leaving, *map(self._task, self.services.values())]

    def _task(self, service: dict[str, Any]) -> dict[str, Any]:
        template = service["task_template"]
        task = {
            "Spec": {"ContainerSpec": template["ContainerSpec"]},
            "NodeID": "n1",
            "Status": {"State": "new"},
        }
        if not self.room:
            return task | {"NodeID": "", "Status": {"State": "pending", "Err": NO_ROOM}}
        wanted = template["Resources"]["Reservations"]["GenericResources"][0]["DiscreteResourceSpec"]
        ids = [{"NamedResourceSpec": {"Kind": "GPU", "Value": gpu}} for gpu in NODE.gpus[: wanted["Value"]]]
        return task if self.looks < 2 else task | {"GenericResources": ids, "Status": {"State": "preparing"}}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_gpus, "_POLL_S", 0.01)
    monkeypatch.setattr(server_gpus, "_PENDING_S", 0.05)


def holds(docker: Docker, *, up: bool = True) -> SwarmGpuHolds:
    view = Reflector(docker, role="task")
    view.nodes = (dataclasses.replace(NODE, up=up),)
    shared = SwarmSharedGpus(docker, view, lambda: SETTINGS, logging.getLogger("test"), lambda: None)
    return SwarmGpuHolds(docker, view, lambda: SETTINGS, shared)


@pytest.fixture
def docker() -> OneNode:
    return OneNode()


@pytest.fixture
def gpus(docker: OneNode) -> SwarmGpuHolds:
    return holds(docker)


async def test_the_ids_are_told_once_swarm_has_assigned_them_and_again(
    docker: OneNode, gpus: SwarmGpuHolds
) -> None:
    assert await gpus.hold(SERVER) == ("GPU-a", "GPU-b")
    assert await gpus.hold(SERVER) == ("GPU-a", "GPU-b")
    assert list(docker.services) == [holder_name("ada", "")]
    assert gpus.all() == {("ada", ""): ("GPU-a", "GPU-b")}


async def test_a_new_job_service_finds_them(docker: OneNode, gpus: SwarmGpuHolds) -> None:
    await gpus.hold(SERVER)
    anew = holds(docker)
    assert await anew.hold(SERVER) == ("GPU-a", "GPU-b"), "the service is there already"
    later = holds(docker)
    await later.open()
    assert later.all() == gpus.all()


async def test_gpus_are_released_once_nothing_of_it_is_left(docker: OneNode, gpus: SwarmGpuHolds) -> None:
    await gpus.hold(SERVER)
    docker.looks = 0
    await gpus.release("ada", "")
    assert (docker.services, docker.leaving, gpus.all()) == ({}, [], {})
    assert docker.looks > 3, "it looked until the task was gone"
    await gpus.release("ada", "")


async def test_a_node_that_is_down_is_not_waited_for(docker: OneNode) -> None:
    gpus = holds(docker, up=False)
    await gpus.hold(SERVER)
    docker.looks = -1000
    await gpus.release("ada", "")
    assert gpus.all() == {}


async def test_no_room_is_told_with_docker_s_words(docker: OneNode, gpus: SwarmGpuHolds) -> None:
    docker.room = False
    with pytest.raises(GpusRefused, match=r"pc-1 has no room \(no suitable node \(insufficient resources"):
        await gpus.hold(SERVER)
    assert gpus.all() == {}
    await gpus.release("ada", "")
    assert docker.services == {}


def test_it_holds_as_many_as_the_server_has_slots_on_its_node_and_does_nothing_else() -> None:
    template = holder_spec(SERVER, NODE, SETTINGS)["task_template"]
    assert template["Placement"] == {"Constraints": ["node.id==n1"]}
    reserved = template["Resources"]["Reservations"]["GenericResources"]
    assert reserved == [{"DiscreteResourceSpec": {"Kind": "GPU", "Value": 2}}]
    container = template["ContainerSpec"]
    assert (container["Command"], container["CapabilityDrop"]) == (["sleep", "infinity"], ["ALL"])
    assert "Secrets" not in container and "Mounts" not in container


def test_its_name_is_nobody_elses() -> None:
    assert holder_name("ada", "") != server_name("ada-gpus", "")
    names = [holder_name(owner, name) for owner in ("ada", "a" * 90, "a--b") for name in ("", "b", "c" * 90)]
    assert len(set(names)) == len(names) and max(map(len, names)) <= 63
