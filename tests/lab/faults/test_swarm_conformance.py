"""The engine `swarm` passes the suite for engines, on three Docker hosts without a job service."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest
from docker.errors import NotFound

from minicluster_hub.engines.swarm.engine import SwarmEngine
from minicluster_hub.engines.swarm.names import CLUSTER_FILTER, TASK_LABEL, task_name
from minicluster_hub.engines.swarm.pull_retries import PAUSES_S

from ... import messages
from ...patience import eventually
from ...service.engines.conformance import EngineConformance, EngineHarness, Engines
from ..machines import Lab, Node
from ..machines.images import NOTEBOOK_IMAGE

pytestmark = pytest.mark.apart("it wants machines without a cluster")

_READ_ALL = "cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline | tr '\\0' '\\n'"


class SwarmHarness(EngineHarness):
    def __init__(self, lab: Lab, image: str) -> None:
        self._lab = lab
        self._image = image
        self._first = lab.nodes[0]
        self.nodes = tuple(node.name for node in lab.nodes)
        self.service_url = f"http://{lab.root_address}:1/"

    def make(self) -> SwarmEngine:
        url = f"unix://{self._first.socket}"
        return SwarmEngine(docker_url=url, image=self._image, verify_gpus=False)

    def agents(self, task_id: int) -> int:
        return len(self._containers(task_id))

    def kill_agent(self, task_id: int) -> None:
        for node, container in self._containers(task_id):
            with node.docker() as client:
                client.kill(container)

    def shown(self, task_id: int) -> str:
        name = task_name(task_id)
        found = [self._first.run(["docker", kind, "inspect", name]).stdout for kind in ("service", "secret")]
        for node, container in self._containers(task_id):
            found += [
                node.run(["docker", "inspect", container]).stdout,
                node.run(["docker", "exec", container, "sh", "-c", _READ_ALL]).stdout,
            ]
        return "\n".join(found)

    def lose(self, node: str) -> None:
        self._node(node).kill()

    def bring_back(self, node: str) -> None:
        self._node(node).power_on()

    def leftovers(self) -> list[str]:
        found: list[str] = []
        with self._first.docker() as client:
            for kind in ("services", "secrets", "networks"):
                found += [f"{kind}: {one}" for one in getattr(client, kind)(filters=CLUSTER_FILTER)]
        for node in self._running_nodes():
            with node.docker() as client:
                found += [str(one) for one in client.containers(all=True, filters=CLUSTER_FILTER)]
        return found

    def late_image(self) -> str:
        """Push an image that is on the first machine only, and stop the registry; return its name."""
        name = f"{self._lab.registry.host}/late:1"
        for words in (["tag", self._image, name], ["push", name]):
            self._first.run(["docker", *words])
        self._lab.registry.stop()
        return name

    def rejections(self, task_id: int) -> int:
        """Return how many pulls of a task have failed."""
        words = ["docker", "service", "ps", task_name(task_id), "--format={{.CurrentState}}"]
        return self._first.run(words, check=False).stdout.count("Rejected")

    def offer_images(self) -> None:
        self._lab.registry.start()

    def drop_image(self, name: str) -> None:
        for node in self._lab.nodes:
            node.run(["docker", "rmi", "--force", name], check=False)

    def _node(self, name: str) -> Node:
        return next(node for node in self._lab.nodes if node.name == name)

    def _running_nodes(self) -> list[Node]:
        return [node for node in self._lab.nodes if node.machine.is_on]

    def _containers(self, task_id: int) -> list[tuple[Node, str]]:
        """Return the running containers of a task, with their nodes."""
        wanted = {"label": [f"{TASK_LABEL}={task_id}"]}
        found: list[tuple[Node, str]] = []
        for node in self._running_nodes():
            with node.docker() as client, suppress(NotFound):
                found += [(node, one["Id"]) for one in client.containers(filters=wanted)]
        return found


class TestSwarm(EngineConformance):
    @pytest.fixture(scope="class")
    def harness(self, swarm: Lab) -> SwarmHarness:
        return SwarmHarness(swarm, f"{swarm.registry.host}/{NOTEBOOK_IMAGE}")

    async def test_an_image_that_its_node_cannot_get_at_once_is_pulled_again(
        self, engines: Engines, harness: SwarmHarness
    ) -> None:
        engine = await engines.opened()
        name = await asyncio.to_thread(harness.late_image)
        launch = engines.launch(1, image=name)
        try:
            await engine.start(launch)
            await engines.look(lambda: harness.rejections(launch.task_id))
        finally:
            await asyncio.to_thread(harness.offer_images)
        await engines.running(engine, launch)
        await engines.nothing_left(engine, launch)
        await asyncio.to_thread(harness.drop_image, name)

    async def test_an_image_that_stays_away_is_a_reason(self, engines: Engines) -> None:
        engine, launch = await engines.opened(), engines.launch(image="127.0.0.1:1/gone:1")
        await engine.start(launch)
        await eventually(lambda: not engine.tasks()[launch.task_id].alive)
        assert messages.COULD_NOT_GET_IMAGE in engine.tasks()[launch.task_id].detail
        await engines.nothing_left(engine, launch)

    async def test_a_task_that_is_ended_between_two_pulls_does_not_come_back(
        self, engines: Engines, harness: SwarmHarness
    ) -> None:
        engine, launch = await engines.opened(), engines.launch(image="127.0.0.1:1/gone:1")
        await engine.start(launch)
        await engines.look(lambda: harness.rejections(launch.task_id))
        await engines.nothing_left(engine, launch)
        await asyncio.sleep(2 * PAUSES_S[0])
        assert not harness.leftovers()
