"""The view of a Swarm's tasks and nodes: one call for all tasks at each poll, whatever their number.

Docker sends no events about tasks, so they are polled: often while one is on its way up or down, seldom while
all run, and hardly ever while there is none. For nodes there are events.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress

from minicluster_hub.engines.swarm.docker import Docker, DockerError, EventWatch
from minicluster_hub.engines.swarm.names import CLUSTER_FILTER
from minicluster_hub.engines.swarm.view import SwarmNode, SwarmTask, images_of, nodes_of, relayed, tasks_of

QUICK_S, CALM_S, IDLE_S = 0.15, 2.0, 15.0
_QUICK_FOR_S = 5.0
_NODES_EVERY_S = 10.0
"""Nodes are polled at least that often, should an event have been missed."""


class Reflector:
    """The newest state that the Swarm's manager reports of the tasks of one role, and of all nodes."""

    def __init__(self, docker: Docker, *, role: str, log: logging.Logger | None = None) -> None:
        self.tasks: Mapping[str, SwarmTask] = {}
        """The task of each service, by the service's name."""
        self.nodes: tuple[SwarmNode, ...] = ()
        self.images: frozenset[tuple[str, str]] = frozenset()
        """Pairs of an image's reference and the id of a node that has it."""
        self.polls = 0
        """Counts the polls that are over. One under way may show less than what is there now."""
        self.on_change: Callable[[], None] = lambda: None
        self._relayed: frozenset[str] | None = None
        self._docker = docker
        self._role = role
        self._log = log or logging.getLogger(__name__)
        self._woken = asyncio.Event()
        self._polled = asyncio.Event()
        self._quick_until = 0.0
        self._poll_nodes = True
        self._nodes_polled_at = 0.0
        self._loop: asyncio.Task[None] | None = None
        self._watch: EventWatch | None = None

    async def open(self) -> None:
        """Poll once, then keep polling. Raises DockerError when there is no Swarm; it may be called again."""
        if self._loop is not None:
            return
        self._watch = self._docker.watch("node", self._node_event)
        try:
            await self._poll()
        except BaseException:
            self._watch.close()
            raise
        self._loop = asyncio.create_task(self._run())

    async def close(self) -> None:
        if self._watch is not None:
            self._watch.close()
        if self._loop is not None:
            self._loop.cancel()
            with suppress(asyncio.CancelledError):
                await self._loop

    def poll_soon(self) -> None:
        """Poll now, and often for a while: something was created or removed."""
        self._quick_until = asyncio.get_running_loop().time() + _QUICK_FOR_S
        self._woken.set()

    async def next_poll(self) -> None:
        """Return when the next poll is over, whatever it showed."""
        await self._polled.wait()

    def node(self, node_id: str) -> SwarmNode | None:
        """Return the node of that id."""
        return next((node for node in self.nodes if node.id == node_id), None)

    def node_named(self, name: str) -> SwarmNode | None:
        return next((node for node in self.nodes if node.name == name), None)

    def is_up(self, node_id: str) -> bool:
        """Tell whether that node is there and up."""
        return any(node.up for node in self.nodes if node.id == node_id)

    def remains(self, service_name: str) -> bool:
        """Tell whether a removed service's task is still there."""
        task = self.tasks.get(service_name)
        return task is not None and self.is_there(task)

    def is_there(self, task: SwarmTask) -> bool:
        """Tell whether a task is on a node. Swarm lists a removed one until its node, if down, is back."""
        return task.desired != "remove" or self.is_up(task.node_id)

    def ready(self, node: SwarmNode) -> bool:
        """Tell whether a node takes new tasks now: one that just joined first needs its relay for images."""
        return node.usable and (self._relayed is None or node.id in self._relayed)

    # --- polling ------------------------------------------------------------------------------

    def _node_event(self) -> None:
        self._poll_nodes = True
        self._woken.set()

    async def _run(self) -> None:
        unavailable = False
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._pause_s()):
                    await self._woken.wait()
            # Not more often than this, however often it is woken.
            await asyncio.sleep(QUICK_S / 3)
            self._woken.clear()
            unavailable = await self._try_to_poll(unavailable)

    async def _try_to_poll(self, unavailable: bool) -> bool:
        """Poll; return whether the manager did not answer. Whatever goes wrong, the next poll comes."""
        try:
            await self._poll()
        except DockerError as error:
            if not unavailable:
                self._log.warning("the Swarm's manager does not answer, its last view stays: %s", error)
        except Exception:
            self._log.exception("the Swarm's answer was not understood, its last view stays")
        else:
            if unavailable:
                self._log.warning("the Swarm's manager answers again")
            return False
        self._poll_nodes = True
        await asyncio.sleep(CALM_S)
        return True

    async def _poll(self) -> None:
        now = asyncio.get_running_loop().time()
        tasks_call = self._docker.call("tasks", filters=CLUSTER_FILTER)
        if self._poll_nodes or not self.tasks or now - self._nodes_polled_at > _NODES_EVERY_S:
            self._poll_nodes, self._nodes_polled_at = False, now
            raw_tasks, raw_nodes = await asyncio.gather(tasks_call, self._docker.call("nodes"))
            nodes = nodes_of(raw_nodes)
        else:
            raw_tasks, nodes = await tasks_call, self.nodes
        self.images = images_of(raw_tasks)
        self._update(tasks_of(raw_tasks, self._role), nodes, relayed(raw_tasks))

    def _update(
        self, tasks: Mapping[str, SwarmTask], nodes: tuple[SwarmNode, ...], relays: frozenset[str] | None
    ) -> None:
        self.polls += 1
        changed = (tasks, nodes, relays) != (self.tasks, self.nodes, self._relayed)
        self.tasks, self.nodes, self._relayed = tasks, nodes, relays
        self._polled.set()
        self._polled = asyncio.Event()
        if changed:
            self.on_change()

    def _pause_s(self) -> float:
        moving = any(self._is_starting_or_ending(task) for task in self.tasks.values())
        if moving or asyncio.get_running_loop().time() < self._quick_until:
            return QUICK_S
        return CALM_S if self.tasks else IDLE_S

    def _is_starting_or_ending(self, task: SwarmTask) -> bool:
        """Tell whether a task is on its way up or down. On a node that is down, nothing moves."""
        return self.is_up(task.node_id) if task.desired == "remove" else task.starting
