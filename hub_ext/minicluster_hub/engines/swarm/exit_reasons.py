"""Why a task ended or cannot start: read from the Swarm before its service is removed, as text for users."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable

from minicluster_hub.engines.base import readable
from minicluster_hub.engines.swarm.docker import Docker
from minicluster_hub.engines.swarm.view import SwarmTask

_LINES, _LONGEST = 40, 4000
_STUCK_AFTER_S = 20.0

_NO_IMAGE = (
    r"no such image|pull access denied|manifest|repository .*not found|failed to resolve|connection refused"
)
_MEANINGS: tuple[tuple[str, str], ...] = (
    (_NO_IMAGE, "the node could not get the image {image}"),
    (r"no space left on device", "the node's disk is full"),
    (r"insufficient resources", "Swarm finds no room on the node: something outside Minicluster uses it"),
    (r"no suitable node", "Swarm does not let tasks onto the node"),
    (r"invalid mount|bind source path", "a folder or volume that the task needs is not on the node"),
)


def lacks_image(task: SwarmTask) -> bool:
    """Return whether a task was rejected because its node could not get the image."""
    return task.state == "rejected" and re.search(_NO_IMAGE, task.error, re.IGNORECASE) is not None


def exit_reason(task: SwarmTask) -> str:
    """Return Docker's reason why a task did not run; a known reason is explained."""
    if task.abandoned and not task.error:
        return "its node was lost while it started"
    reason = task.error or f"Docker says no more than {task.state!r}"
    for pattern, meaning in _MEANINGS:
        if re.search(pattern, reason, re.IGNORECASE):
            explained = meaning.format(image=task.image or "of the task")
            return f"{explained} ({reason}). An admin's `doctor` looks for the cause."
    return reason


class ExitReasons:
    """Fetches the end of each ended task's log once; stores it until `forget`."""

    def __init__(self, docker: Docker, log: logging.Logger, on_change: Callable[[], None]) -> None:
        self._docker = docker
        self._log = log
        self._on_change = on_change
        self._reasons: dict[str, str] = {}
        self._fetching: dict[str, asyncio.Task[None]] = {}
        self._stuck_since: dict[str, float] = {}

    def reason(self, task: SwarmTask) -> str | None:
        """Return why the task ended; None while its log is being fetched."""
        if task.service_name in self._reasons:
            return self._reasons[task.service_name]
        if not task.container_id:
            return exit_reason(task)
        if task.service_name not in self._fetching:
            self._fetching[task.service_name] = asyncio.create_task(self._fetch(task))
        return None

    def stuck(self, task: SwarmTask) -> str | None:
        """Return why a task waits for its node for too long; None while it may still start."""
        if task.state != "pending" or not task.error:
            self._stuck_since.pop(task.service_name, None)
            return None
        loop = asyncio.get_running_loop()
        if task.service_name not in self._stuck_since:
            self._stuck_since[task.service_name] = loop.time()
            loop.call_later(_STUCK_AFTER_S, self._on_change)
        waited_s = loop.time() - self._stuck_since[task.service_name]
        return exit_reason(task) if waited_s >= _STUCK_AFTER_S else None

    def forget(self, service_name: str) -> None:
        self._reasons.pop(service_name, None)
        self._stuck_since.pop(service_name, None)

    async def close(self) -> None:
        for work in self._fetching.values():
            work.cancel()
        await asyncio.gather(*self._fetching.values(), return_exceptions=True)

    async def _fetch(self, task: SwarmTask) -> None:
        text = await self._docker.logs(task.service_name, _LINES, self._log)
        lines = [task.error, readable(text)[-_LONGEST:]]
        self._reasons[task.service_name] = "\n".join(line for line in lines if line)
        self._fetching.pop(task.service_name, None)
        self._on_change()
