"""One start of a server: creates its service, and waits until it listens or has failed."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress

from minicluster_hub.engines.swarm.view import SwarmTask
from minicluster_spawner.progress import StartProgress, listening, task_stage
from minicluster_spawner.refusals import StartRefused, is_over, not_listening, refusal
from minicluster_spawner.server_spec import ServerLaunch, ServerSettings, secret_specs, service_spec
from minicluster_spawner.shared import ServerKey, SharedSwarm

_POLLS_TO_APPEAR = 5
_PROBE_TIMEOUT_S, _FIRST_PAUSE_S, _LONGEST_PAUSE_S = 2.0, 0.05, 0.4


class ServerStart:
    """One start. `SharedSwarm.end` removes what it created."""

    def __init__(
        self,
        shared: SharedSwarm,
        launch: ServerLaunch,
        progress: StartProgress,
        image_bytes: int | None,
    ) -> None:
        self._shared = shared
        self._launch = launch
        self._key = ServerKey(launch.owner, launch.server)
        self._progress = progress
        self._image_bytes = image_bytes

    async def create(
        self, environment: Mapping[str, str], files: Mapping[str, bytes], settings: ServerSettings
    ) -> str:
        """Make secrets and service; return the service's id. Raises DockerError."""
        specs = secret_specs(self._launch, environment, files)
        ids = await asyncio.gather(*(self._shared.create_secret(spec) for spec in specs))
        names = [str(spec["name"]) for spec in specs]
        spec = service_spec(self._launch, dict(zip(names, ids, strict=True)), settings)
        return await self._shared.create_service(spec)

    async def wait_running(self, pending_patience_s: float) -> None:
        """Return when the container runs. Raises StartRefused as soon as it can no longer start.

        pending_patience_s: how long to wait while the node has no room for Swarm's task.
        """
        view, loop = self._shared.view, asyncio.get_running_loop()
        begun_s, made_at_poll = loop.time(), view.polls
        give_up_s: float | None = None
        while True:
            task = self._task()
            if task is None:
                await self._check_appears(made_at_poll)
            else:
                await self._check_alive(task)
                if task.running:
                    return
                no_room = task.state == "pending" and bool(task.error)
                give_up_s = (give_up_s or loop.time() + pending_patience_s) if no_room else None
                if give_up_s is not None and loop.time() > give_up_s:
                    raise self._refusal(task)
            waited_s = loop.time() - begun_s
            self._progress.report(task_stage(task, self._launch.node.name, self._image_bytes, waited_s))
            await view.next_poll()

    async def wait_listening(self, host: str, port: int, timeout_s: float) -> None:
        """Return when the server accepts connections. Raises StartRefused if it ends or does not answer."""
        loop = asyncio.get_running_loop()
        until_s, pause_s = loop.time() + timeout_s, _FIRST_PAUSE_S
        task = self._task()
        self._progress.report(task_stage(task, self._launch.node.name))
        # The address first: Docker queries DNS servers outside for a name that it does not know yet.
        waiting_for = [*(task.addresses[:1] if task else ()), host]
        while waiting_for:
            if await answers(waiting_for[0], port):
                waiting_for.pop(0)
                continue
            if (task := self._task()) is not None:
                await self._check_alive(task)
            if loop.time() > until_s:
                log = await self._shared.last_lines(self._key)
                raise not_listening(self._launch.node.name, host, port, log)
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        self._progress.report(listening(self._launch.node.name))

    def _task(self) -> SwarmTask | None:
        return self._shared.task(self._key, self._launch.spawn_id)

    async def _check_appears(self, made_at_poll: int) -> None:
        """Raise StartRefused if somebody removed the service. A new task appears after one or two polls."""
        if self._shared.view.polls <= made_at_poll + _POLLS_TO_APPEAR:
            return
        if not await self._shared.service_there(self._key):
            raise StartRefused("removed", "Somebody removed the server while it started. Start it again.")

    async def _check_alive(self, task: SwarmTask) -> None:
        if is_over(task):
            log = await self._shared.last_lines(self._key) if task.container_id else ""
            raise self._refusal(task, log)

    def _refusal(self, task: SwarmTask, log: str = "") -> StartRefused:
        return refusal(task, self._launch.node.name, self._launch.choice.image_name, log)


async def answers(host: str, port: int) -> bool:
    """Return whether something accepts connections at an address."""
    try:
        async with asyncio.timeout(_PROBE_TIMEOUT_S):
            _, writer = await asyncio.open_connection(host, port)
    except (OSError, TimeoutError):
        return False
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()
    return True
