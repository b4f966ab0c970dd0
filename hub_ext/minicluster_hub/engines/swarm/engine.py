"""Starts agents as services of a Docker Swarm, one per task, and finds them again by their labels."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import suppress
from typing import Any, TypeVar

from minicluster_hub.engines.base import GpusRefused, ImageUnknown, TaskLaunch, TaskRefused
from minicluster_hub.engines.node_tokens import NodeTokens
from minicluster_hub.engines.swarm.data_agents import DataAgents
from minicluster_hub.engines.swarm.docker import (
    Docker,
    DockerAway,
    DockerConflict,
    DockerError,
    DockerRefused,
)
from minicluster_hub.engines.swarm.engine_config import SwarmEngineConfig
from minicluster_hub.engines.swarm.last_words import LastWords
from minicluster_hub.engines.swarm.lighthouses import SwarmLighthouses
from minicluster_hub.engines.swarm.names import GANG_LABEL, TASK_LABEL, label_filter, task_name
from minicluster_hub.engines.swarm.networks import GangNetworks
from minicluster_hub.engines.swarm.reflector import Reflector
from minicluster_hub.engines.swarm.server_gpus import Key, ServerGpus
from minicluster_hub.engines.swarm.spec import secret_spec, service_spec
from minicluster_hub.engines.swarm.view import SwarmTask, slot_kinds
from minicluster_hub.jobs.records import LighthouseView, NodeView, ServerRecord, TaskView

_LOOKS_TO_APPEAR, _APPEARS_WITHIN_S = 5, 15.0
"""A new service's task is listed within a look or two; one not there after both of these never came."""
_AWAY_PAUSE_S = 2.0
_Made = TypeVar("_Made")


class SwarmEngine(SwarmEngineConfig):
    """The nodes of a Swarm. Runs on a manager, with its Docker socket."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._docker = Docker.connect(self.docker_url or None)
        self._view = Reflector(self._docker, role="task", log=self.log)  # pyright: ignore[reportArgumentType]
        self._networks = GangNetworks(self._docker, self.log)  # pyright: ignore[reportArgumentType]
        self._words = LastWords(self._docker, self.log, self._changed)  # pyright: ignore[reportArgumentType]
        self._lighthouses = SwarmLighthouses(self._docker, self._networks)
        self._server_gpus = ServerGpus(self._docker, self._is_up)
        self._data_agents = DataAgents(self._docker, self.log, self._changed)  # pyright: ignore[reportArgumentType]
        self._gangs: dict[int, int] = {}
        """The gang of each task that may have something in the Swarm."""
        self._made: dict[int, tuple[int, float]] = {}
        """At which look and when each task's service was made."""
        self._ended: set[int] = set()

    async def open(self) -> None:
        await self._view.open()
        self._view.on_change = self._seen
        self._seen()
        for service in await self._docker.call("services", filters=label_filter("task")):
            # Made a moment before the former service was killed: its task is not listed yet.
            self._know(service["Spec"]["Labels"])
        for secret in await self._docker.call("secrets", filters=label_filter("task")):
            # Of a start that was cut off before its service: the next start makes another one.
            if int(secret["Spec"]["Labels"][TASK_LABEL]) not in self._gangs:
                await self._docker.remove("remove_secret", secret["Spec"]["Name"])
        await self._lighthouses.open()
        await self._server_gpus.open()
        await self._data_agents.open()
        await self._networks.find_unused()

    async def start(self, launch: TaskLaunch) -> None:
        if launch.task_id in self._gangs:
            return
        node = next((node for node in self._view.nodes if node.name == launch.node), None)
        if node is None:
            raise TaskRefused(f"there is no node {launch.node} in the Swarm any more")
        kinds = slot_kinds(self._view.nodes)[node.name]
        self._networks.hold(launch.gang_id, launch.task_id)
        try:
            secret_id = await self._patiently(lambda: self._make_around(launch))
            spec = service_spec(launch, node, kinds, secret_id, self.task_settings())
            await self._patiently(lambda: self._make_service(spec))
        except DockerRefused as error:
            raise TaskRefused(f"Docker refused the task on {launch.node}: {error.message}") from error
        finally:
            # From here on something may be there, which `end` removes.
            self._gangs[launch.task_id] = launch.gang_id
            self._note_made(launch.task_id)
            self._view.nudge()

    async def end(self, task_id: int) -> None:
        name = task_name(task_id)
        await self._docker.remove("remove_service", name)
        self._view.nudge()
        # Nobody asks for it any more; a frozen node would keep it for long.
        await self._docker.remove("remove_secret", name)
        while self._remains(name):
            await self._view.next_look()
        gang_id = self._gangs.get(task_id)
        if gang_id is not None:
            await self._networks.release(gang_id, task_id)
        self._ended.add(task_id)

    def tasks(self) -> Mapping[int, TaskView]:
        return {task_id: self._task_view(task_id) for task_id in self._gangs.keys() | self._ended}

    def forget(self, task_id: int) -> None:
        for known in (self._gangs, self._made):
            known.pop(task_id, None)
        self._ended.discard(task_id)
        self._words.forget(task_name(task_id))

    async def start_lighthouse(self, gang_id: int) -> None:
        await self._patiently(
            lambda: self._lighthouses.start(gang_id, self._view.nodes, self.task_settings())
        )

    async def end_lighthouse(self, gang_id: int) -> None:
        await self._lighthouses.end(gang_id)

    def lighthouses(self) -> Mapping[int, LighthouseView]:
        return self._lighthouses.all()

    async def hold_gpus(self, server: ServerRecord) -> tuple[str, ...]:
        node = next((node for node in self._view.nodes if node.name == server.node), None)
        if node is None:
            raise GpusRefused(f"there is no node {server.node} in the Swarm any more")
        return await self._server_gpus.hold(server, node, self.task_settings())

    async def release_gpus(self, owner: str, name: str) -> None:
        await self._server_gpus.release(owner, name)

    def held_gpus(self) -> Mapping[Key, tuple[str, ...]]:
        return self._server_gpus.all()

    def nodes(self) -> tuple[NodeView, ...]:
        ready, kinds = self._view.ready, slot_kinds(self._view.nodes)
        return tuple(
            NodeView(
                name=one.name,
                up=ready(one),
                address=one.address,
                slot_kinds=kinds[one.name],
                closed=self.closed(one),
                cpus=one.cpus,
                memory_bytes=one.memory_bytes,
            )
            for one in self._view.nodes
        )

    def own_images(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(image for image in (self.image, *self.images) if image))

    def images_there(self) -> Mapping[str, Collection[str]]:
        names = {node.id: node.name for node in self._view.nodes}
        found: dict[str, set[str]] = {}
        for image, node_id in self._view.images:
            if node_id in names:
                found.setdefault(image, set()).add(names[node_id])
        return found

    def keep_data(self, service_url: str, tokens: NodeTokens, *, wanted: bool) -> None:
        self._data_agents.tend(self._view.nodes, service_url, tokens, self.task_settings())

    async def image_digest(self, reference: str) -> str:
        try:
            found = await self._docker.call("inspect_distribution", reference)
        except DockerError as error:
            raise ImageUnknown(str(error)) from error
        return str(found["Descriptor"]["digest"])

    async def close(self) -> None:
        await self._data_agents.close()
        await self._words.close()
        await self._networks.close()
        await self._view.close()
        self._docker.close()

    # --- what is seen -------------------------------------------------------------------------

    def _changed(self) -> None:
        self.on_change()

    def _seen(self) -> None:
        """Learn of tasks that an earlier service made; wake the reconciler."""
        for task in self._view.tasks.values():
            if self._on_a_node(task):
                self._know(task.labels)
        self._networks.sweep_soon()
        self._changed()

    def _know(self, labels: Mapping[str, str]) -> None:
        task_id, gang_id = int(labels[TASK_LABEL]), int(labels[GANG_LABEL])
        if task_id not in self._gangs:
            self._gangs[task_id] = gang_id
            self._note_made(task_id)
            self._networks.hold(gang_id, task_id)

    def _on_a_node(self, task: SwarmTask) -> bool:
        """Tell whether a task is there. The Swarm lists a removed one until its node, if down, is back."""
        return task.desired != "remove" or self._is_up(task.node_id)

    def _is_up(self, node_id: str) -> bool:
        node = self._view.node(node_id)
        return node is not None and node.up

    def _remains(self, name: str) -> bool:
        task = self._view.tasks.get(name)
        return task is not None and self._on_a_node(task)

    def _task_view(self, task_id: int) -> TaskView:
        if task_id in self._ended:
            return TaskView(task_id, alive=False, clean=True)
        task = self._view.tasks.get(task_name(task_id))
        if task is None:
            awaited = self._is_awaited(task_id)
            return TaskView(task_id, alive=awaited, starting=awaited)
        if task.starting:
            trouble = self._words.stuck(task)
            return TaskView(task_id, alive=not trouble, starting=not trouble, detail=trouble or "")
        words = "" if task.running else self._words.of(task)
        if words is None:  # It counts as alive until its last words are here.
            return TaskView(task_id, alive=True, exit_code=task.exit_code)
        return TaskView(
            task_id,
            alive=task.running,
            exit_code=task.exit_code,
            detail=words,
            node_lost=task.given_up or not self._is_up(task.node_id),
        )

    def _note_made(self, task_id: int) -> None:
        loop = asyncio.get_running_loop()
        self._made[task_id] = self._view.looks, loop.time()
        loop.call_later(_APPEARS_WITHIN_S, self._changed)

    def _is_awaited(self, task_id: int) -> bool:
        """Tell whether a task that is not listed may still appear: its service is new."""
        look, at = self._made[task_id]
        new = asyncio.get_running_loop().time() - at < _APPEARS_WITHIN_S
        return new or self._view.looks <= look + _LOOKS_TO_APPEAR

    # --- making -------------------------------------------------------------------------------

    async def _patiently(self, make: Callable[[], Awaitable[_Made]]) -> _Made:
        """Make something, however long Docker is away: nothing can be ended without it either."""
        while True:
            try:
                return await make()
            except DockerAway as error:
                self.log.warning("a task's start waits for Docker: %s", error)
                await asyncio.sleep(_AWAY_PAUSE_S)

    async def _make_service(self, spec: dict[str, Any]) -> None:
        with suppress(DockerConflict):  # The name holds our id: it is this task's service.
            await self._docker.call("create_service", **spec)

    async def _make_around(self, launch: TaskLaunch) -> str:
        """Make what a task's service stands on, in one round trip; return the secret's id."""
        if self.host_network:
            return await self._make_secret(launch)
        secret_id, _ = await asyncio.gather(self._make_secret(launch), self._networks.make(launch.gang_id))
        return secret_id

    async def _make_secret(self, launch: TaskLaunch) -> str:
        spec = secret_spec(launch)
        try:
            made = await self._docker.call("create_secret", **spec)
        except DockerConflict:
            # Of a start that was cut off: only its hash is in the store, so a new one takes its place,
            # and a service that stands on the former one would never be let in.
            await self._docker.remove("remove_service", spec["name"])
            await self._docker.remove("remove_secret", spec["name"])
            made = await self._docker.call("create_secret", **spec)
        return str(made["ID"])
