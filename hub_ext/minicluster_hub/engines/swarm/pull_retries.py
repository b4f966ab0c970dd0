"""Starts a task again whose node could not get its image: the registry, or the node's relay, may just start.

Docker tries a pull once, and says no more than "No such image".
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from minicluster_hub.engines.swarm.docker import Docker, DockerError
from minicluster_hub.engines.swarm.exit_reasons import lacks_image
from minicluster_hub.engines.swarm.reflector import Reflector
from minicluster_hub.engines.swarm.view import SwarmTask

PAUSES_S = (1.0, 3.0, 9.0)


@dataclass
class _Launch:
    """spec: of create_service. rejected: ids of the Swarm's tasks that did not get the image.

    ended: set when the task is not to start any more.
    """

    spec: Mapping[str, Any]
    rejected: list[str] = field(default_factory=list[str])
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    retry: asyncio.Task[None] | None = None

    @property
    def under_way(self) -> bool:
        return self.retry is not None and not self.retry.done()


class PullRetries:
    """The tasks that may be started again, by id. on_start: called with that of one that was."""

    def __init__(
        self, docker: Docker, view: Reflector, log: logging.Logger, on_start: Callable[[int], None]
    ) -> None:
        self._docker = docker
        self._view = view
        self._log = log
        self._on_start = on_start
        self._launches: dict[int, _Launch] = {}

    def remember(self, task_id: int, spec: Mapping[str, Any]) -> None:
        """Note how a task was started. One that a former job service started is not started again."""
        self._launches[task_id] = _Launch(spec)

    def tries_again(self, task_id: int, task: SwarmTask | None) -> bool:
        """Return whether a task without an image is being started again; if it should be, start it."""
        launch = self._launches.get(task_id)
        if launch is None:
            return False
        lacks = task is not None and lacks_image(task)
        if task is not None and lacks and task.task_id not in launch.rejected and not launch.under_way:
            launch.rejected.append(task.task_id)
            if len(launch.rejected) <= len(PAUSES_S):
                launch.retry = asyncio.create_task(self._start_again(task_id, launch))
        return launch.under_way

    async def stop(self, task_id: int) -> None:
        """Start a task no more, since it ends. A start under way is over afterwards."""
        launch = self._launches.pop(task_id, None)
        if launch is not None and launch.retry is not None:
            # Cancelled, a call of Docker would go on in its thread, and create what was removed.
            launch.ended.set()
            await launch.retry

    async def close(self) -> None:
        await asyncio.gather(*map(self.stop, list(self._launches)))

    async def _start_again(self, task_id: int, launch: _Launch) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(launch.ended.wait(), PAUSES_S[len(launch.rejected) - 1])
        name = launch.spec["name"]
        with suppress(DockerError):
            if not launch.ended.is_set():
                self._log.warning("%s: its node could not get the image, it is started again", name)
                await self._docker.remove("remove_service", name)
                self._view.poll_soon()
            while self._view.remains(name) and not launch.ended.is_set():
                await self._view.next_poll()
            if not launch.ended.is_set():
                await self._docker.create("create_service", **launch.spec)
                self._on_start(task_id)
                self._view.poll_soon()
