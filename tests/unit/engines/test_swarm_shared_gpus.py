"""Shared GPUs of a Swarm, without a Swarm: the services as data, and when they are made and removed."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from types import SimpleNamespace
from typing import Any

import pytest

from minicluster_hub.engines.base import TaskLaunch
from minicluster_hub.engines.swarm.docker import Docker, DockerConflict, DockerMissing
from minicluster_hub.engines.swarm.gpus import sharing
from minicluster_hub.engines.swarm.gpus.share import SharedGpu
from minicluster_hub.engines.swarm.gpus.sharing import SharingRefused, SwarmSharedGpus, shared_gpu_spec
from minicluster_hub.engines.swarm.reflector import Reflector
from minicluster_hub.engines.swarm.spec import TaskSettings, service_spec
from minicluster_hub.engines.swarm.view import SwarmNode
from minicluster_hub.jobs.slot_numbers import halves

GB = 2**30
NODE = SwarmNode("n1", "pc-1", "10.0.0.1", True, True, "active", ("GPU-a",), {}, "26.1.5", 64 * GB, 16.0)
SETTINGS = TaskSettings(image="127.0.0.1:5100/minicluster/notebook@sha256:" + "a" * 64)
LAUNCH = TaskLaunch(12, 4, "ada", "pc-1", (0,), "token", ("http://10.0.0.1/",), job_id=7, gpu_share=0.5)
SHARED = SharedGpu("GPU-a", 0)


class OneNode(Docker):
    """A Swarm's answers: its tasks run, or fail at their start. No real engine here has a GPU."""

    def __init__(self) -> None:
        super().__init__(connect=lambda: SimpleNamespace(close=lambda: None), retry_s=0.0)
        self.services: dict[str, dict[str, Any]] = {}
        self.made = 0
        self.state = "running"
        self.said = b""

    async def call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        await asyncio.sleep(0)
        return getattr(self, f"_{method}")(*args, **kwargs)

    async def logs(self, service: str, lines: int, log: logging.Logger) -> str:
        return self.said.decode()

    def _services(self, filters: Any) -> list[dict[str, Any]]:
        return [{"Spec": {"Name": name, "Labels": one["labels"]}} for name, one in self.services.items()]

    def _create_service(self, **spec: Any) -> dict[str, Any]:
        if spec["name"] in self.services:
            raise DockerConflict("name conflicts with an existing object")
        self.made += 1
        self.services[spec["name"]] = spec
        return {"ID": spec["name"]}

    def _remove_service(self, name: str) -> None:
        if name not in self.services:
            raise DockerMissing(f"service {name} not found")
        del self.services[name]

    def _tasks(self, filters: Any) -> list[dict[str, Any]]:
        assert "org.minicluster.role=shared-gpu" in filters["label"]
        return [
            {
                "ID": name,
                "Spec": {"ContainerSpec": one["task_template"]["ContainerSpec"]},
                "NodeID": "n1",
                "Status": {"State": self.state, "Err": "task: non-zero exit (1)"},
                "GenericResources": [{"NamedResourceSpec": {"Kind": "GPU", "Value": "GPU-a"}}],
            }
            for name, one in self.services.items()
        ]


@pytest.fixture
def docker() -> OneNode:
    return OneNode()


def shared_gpus(docker: Docker) -> SwarmSharedGpus:
    view = Reflector(docker, role="task")
    view.nodes = (NODE,)
    return SwarmSharedGpus(docker, view, lambda: SETTINGS, logging.getLogger("test"), lambda: None)


async def settled(gpus: SwarmSharedGpus) -> None:
    await asyncio.gather(*gpus._removing.values())


async def test_both_halves_have_the_one_gpu_of_one_service(docker: OneNode) -> None:
    gpus = shared_gpus(docker)
    found = await asyncio.gather(*(gpus.share(NODE, half) for half in halves(0)))
    assert found == [SHARED, SHARED] and docker.made == 1


async def test_a_service_goes_when_nobody_has_a_share_but_not_a_new_one(
    docker: OneNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpus = shared_gpus(docker)
    await gpus.share(NODE, 0)
    gpus.keep(set())
    await settled(gpus)
    assert docker.services, "a tick may be older than a server's lease"
    monkeypatch.setattr(sharing, "_STAYS_S", 0.0)
    gpus.keep({("pc-1", 0)})
    await settled(gpus)
    assert docker.services
    gpus.keep(set())
    await settled(gpus)
    assert not docker.services


async def test_one_of_an_earlier_job_service_is_removed_or_made_anew(docker: OneNode) -> None:
    await shared_gpus(docker).share(NODE, 0)
    again = shared_gpus(docker)
    await again.open()
    assert await again.share(NODE, halves(0)[1]) == SHARED and docker.made == 1
    later = shared_gpus(docker)
    await later.open()
    later.keep(set())
    await settled(later)
    assert not docker.services


async def test_a_card_that_cannot_is_known_after_the_first_try(docker: OneNode) -> None:
    gpus = shared_gpus(docker)
    docker.state = "failed"
    docker.said = b"2026-11-29 17:20:00 ERROR its compute capability 6.1 is below 7.0 (Volta)\n"
    with pytest.raises(
        SharingRefused, match=r"the GPU of pc-1 cannot be shared: its compute capability 6\.1"
    ):
        await gpus.share(NODE, 0)
    assert gpus.refusals == {"n1": "its compute capability 6.1 is below 7.0 (Volta)"}


def mounts(container: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {one["Target"]: one for one in container["Mounts"]}


def test_the_service_has_the_gpu_and_runs_mps_as_the_tenants_user() -> None:
    template = shared_gpu_spec(("n1", 0), NODE, SETTINGS)["task_template"]
    container = template["ContainerSpec"]
    assert template["Resources"]["Reservations"]["GenericResources"][0]["DiscreteResourceSpec"]["Value"] == 1
    assert container["Command"][-1] == "minicluster.runtime.node.mps" and container["User"] == SETTINGS.user
    assert "NVIDIA_DRIVER_CAPABILITIES=compute,utility" in container["Env"]
    assert container["CapabilityDrop"] == ["ALL"]


def test_a_task_with_half_a_gpu_reserves_none_sees_that_one_and_meets_the_daemon() -> None:
    made = service_spec(LAUNCH, NODE, ("gpu",), "secret", SETTINGS, SHARED)["task_template"]
    container = made["ContainerSpec"]
    environment = dict(one.split("=", 1) for one in container["Env"])
    assert "Reservations" not in made["Resources"]
    assert environment["NVIDIA_VISIBLE_DEVICES"] == environment["DOCKER_RESOURCE_GPU"] == "GPU-a"
    assert (environment["MINICLUSTER_GPUS"], environment["MINICLUSTER_GPU_SHARE"]) == ("1", "0.5")
    daemons = mounts(shared_gpu_spec(("n1", 0), NODE, SETTINGS)["task_template"]["ContainerSpec"])
    mine = mounts(container)
    assert environment["CUDA_MPS_PIPE_DIRECTORY"] in mine
    assert all(mine[target] == daemons[target] for target in daemons)
    assert set(daemons) == {"/dev/shm", environment["CUDA_MPS_PIPE_DIRECTORY"]}


def test_half_a_gpu_comes_with_half_of_its_share_of_the_memory() -> None:
    whole = dataclasses.replace(LAUNCH, gpu_share=None)
    limits = [
        service_spec(launch, NODE, ("gpu", "gpu"), "secret", SETTINGS)["task_template"]["Resources"]["Limits"]
        for launch in (LAUNCH, whole)
    ]
    assert 2 * limits[0]["MemoryBytes"] == pytest.approx(limits[1]["MemoryBytes"], abs=2)
