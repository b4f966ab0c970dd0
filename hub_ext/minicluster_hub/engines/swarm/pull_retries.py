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
    """spec: of create_service. rejected: ids of the Swarm's tasks that did not get the image."""

    spec: Mapping[str, Any]
    rejected: list[str] = field(default_factory=list[str])
    retry: asyncio.Task[None] | None = None

    @property
    def under_way(self) -> bool:
        return self.retry is not None and not self.retry.done()


class PullRetries:
    """The services that may be started again, by name. on_start: called when one was created again."""

    def __init__(
        self, docker: Docker, view: Reflector, log: logging.Logger, on_start: Callable[[str], None]
    ) -> None:
        self._docker = docker
        self._view = view
        self._log = log
        self._on_start = on_start
        self._launches: dict[str, _Launch] = {}

    def remember(self, name: str, spec: Mapping[str, Any]) -> None:
        """Note how a service was made. One that a former job service made is not started again."""
        self._launches[name] = _Launch(spec)

    def tries_again(self, name: str, task: SwarmTask | None) -> bool:
        """Return whether a service without an image is being started again; if it should be, start it."""
        launch = self._launches.get(name)
        if launch is None:
            return False
        lacks = task is not None and lacks_image(task)
        if task is not None and lacks and task.task_id not in launch.rejected and not launch.under_way:
            launch.rejected.append(task.task_id)
            if len(launch.rejected) <= len(PAUSES_S):
                launch.retry = asyncio.create_task(self._start_again(name, launch))
        return launch.under_way

    async def stop(self, name: str) -> None:
        """Start a service no more, since it ends."""
        launch = self._launches.pop(name, None)
        if launch is not None and launch.retry is not None:
            launch.retry.cancel()
            # A creation under way ends before its service is removed.
            await asyncio.gather(launch.retry, return_exceptions=True)

    def forget(self, name: str) -> None:
        self._launches.pop(name, None)

    async def close(self) -> None:
        for name in list(self._launches):
            await self.stop(name)

    async def _start_again(self, name: str, launch: _Launch) -> None:
        await asyncio.sleep(PAUSES_S[len(launch.rejected) - 1])
        self._log.warning("%s: its node could not get the image, it is started again", name)
        with suppress(DockerError):
            await self._docker.remove("remove_service", name)
            self._view.poll_soon()
            while self._view.remains(name):
                await self._view.next_poll()
            await self._docker.create("create_service", **launch.spec)
            self._on_start(name)
