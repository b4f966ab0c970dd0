"""The gangs' overlay networks: made with the first task, removed after the last, also late.

They are removed by their names: the Docker proxy lets no id pass, since it does not say whose it is.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from minicluster_hub.engines.swarm.docker import Docker, DockerError, DockerMissing
from minicluster_hub.engines.swarm.names import GANG_LABEL, gang_network, label_filter
from minicluster_hub.engines.swarm.spec import network_spec

_RETRY_S = (0.1, 0.2, 0.5, 1.0, 2.0)


class GangNetworks:
    """Which tasks use each network. One that cannot be removed yet (a node is down) is tried again."""

    def __init__(self, docker: Docker, log: logging.Logger) -> None:
        self._docker = docker
        self._log = log
        self._users: dict[int, set[int]] = {}
        self._stale: set[int] = set()
        """The gangs whose networks are to be removed."""
        self._sweeping: asyncio.Task[None] | None = None

    def add_task(self, gang_id: int, task_id: int) -> None:
        """Register a task that uses its gang's network."""
        self._users.setdefault(gang_id, set()).add(task_id)

    async def make(self, gang_id: int) -> None:
        """Make a gang's network unless it is there."""
        await self._docker.create("create_network", **network_spec(gang_id))

    async def release(self, gang_id: int, task_id: int) -> None:
        """Remove the gang's network if this was its last task."""
        users = self._users.get(gang_id, set())
        users.discard(task_id)
        if users:
            return
        self._users.pop(gang_id, None)
        if await self._networks(gang_id):
            self._stale.add(gang_id)
        await self._sweep()

    def sweep_soon(self) -> None:
        """Try again to remove what could not be removed, in the background."""
        if self._stale and (self._sweeping is None or self._sweeping.done()):
            self._sweeping = asyncio.create_task(self._sweep())

    async def close(self) -> None:
        if self._sweeping is not None:
            self._sweeping.cancel()
            await asyncio.gather(self._sweeping, return_exceptions=True)

    async def _sweep(self) -> None:
        await asyncio.gather(*(self._remove(gang_id) for gang_id in tuple(self._stale)))

    async def find_unused(self) -> None:
        """Find networks that an earlier service left without a task."""
        found = {int(network["Labels"][GANG_LABEL]) for network in await self._networks()}
        self._stale |= found - self._users.keys()
        await self._sweep()

    async def _networks(self, gang_id: int | None = None) -> list[dict[str, Any]]:
        filters = label_filter("gang")
        if gang_id is not None:
            filters["label"] = [*filters["label"], f"{GANG_LABEL}={gang_id}"]
        return await self._docker.call("networks", filters=filters)

    async def _remove(self, gang_id: int) -> None:
        """A network is in use until the Swarm has detached its last task, shortly after the task ended."""
        for pause_s in _RETRY_S:
            try:
                if gang_id not in self._users:  # One that is used again has the same name.
                    await self._docker.call("remove_network", gang_network(gang_id))
            except DockerMissing:
                pass
            except DockerError as error:
                self._log.debug("the network of gang %s stays for now: %s", gang_id, error)
                await asyncio.sleep(pause_s)
                continue
            self._stale.discard(gang_id)
            return
