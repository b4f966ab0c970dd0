"""What all spawners of a hub share: the view of the Swarm, the job service's client, and how servers end."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable, MutableMapping
from dataclasses import dataclass
from typing import Any

from minicluster_hub.engines.swarm.docker import Docker, DockerConflict, DockerError, DockerMissing
from minicluster_hub.engines.swarm.names import NAME_LABEL, label_filter, server_name
from minicluster_hub.engines.swarm.reflector import Reflector
from minicluster_hub.engines.swarm.view import SwarmTask
from minicluster_spawner.ledger import LedgerClient
from minicluster_spawner.server_spec import SPAWN_LABEL

_SETTING = "minicluster_swarm"
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 10.0
_LOG_LINES = 20


@dataclass(frozen=True, slots=True)
class ServerKey:
    """A server's owner and name. server: "" for the unnamed one."""

    owner: str
    server: str

    @property
    def service(self) -> str:
        return server_name(self.owner, self.server)


def new_spawn_id() -> str:
    return uuid.uuid4().hex[:12]


class SharedSwarm:
    """A hub has one instance. It makes no calls before `open`."""

    def __init__(self, docker: Docker, ledger: LedgerClient, log: logging.Logger) -> None:
        self.docker = docker
        self.ledger = ledger
        self.view = Reflector(docker, role="server", log=log)
        self._log = log
        self._opening: asyncio.Task[None] | None = None
        self._endings: dict[ServerKey, asyncio.Task[None]] = {}

    @classmethod
    def of(cls, hub_settings: MutableMapping[str, Any], make: Callable[[], SharedSwarm]) -> SharedSwarm:
        """Return the hub's instance from the settings of its application."""
        if _SETTING not in hub_settings:
            hub_settings[_SETTING] = make()
        return hub_settings[_SETTING]

    async def open(self) -> None:
        """Read the Swarm for the first time; later calls do nothing. Raises DockerError."""
        if self._opening is None:
            self._opening = asyncio.create_task(self._open())
        opening = self._opening
        try:
            await asyncio.shield(opening)
        except DockerError:
            if self._opening is opening:
                self._opening = None
            raise

    async def close(self) -> None:
        """Close everything; the servers keep running."""
        for work in (self._opening, *self._endings.values()):
            if work is not None:
                work.cancel()
        await asyncio.gather(*self._endings.values(), return_exceptions=True)
        await self.view.close()
        await self.ledger.close()
        self.docker.close()

    # --- seeing -------------------------------------------------------------------------------

    def task(self, key: ServerKey, spawn_id: str = "") -> SwarmTask | None:
        """Return a server's task. spawn_id: only of this start; "": of any."""
        task = self.view.tasks.get(key.service)
        if task is None or (spawn_id and task.labels.get(SPAWN_LABEL) != spawn_id):
            return None
        return task

    def node_name(self, task: SwarmTask) -> str:
        node = self.view.node(task.node_id)
        return node.name if node else "its node"

    async def service_there(self, key: ServerKey) -> bool:
        """Return whether a server's service exists. Asks Docker, not the view. Raises DockerError."""
        try:
            await self.docker.call("inspect_service", key.service)
        except DockerMissing:
            return False
        return True

    async def last_lines(self, key: ServerKey) -> str:
        """Return the last lines of a server's output; "" if Docker has none."""
        return await self.docker.logs(key.service, _LOG_LINES, self._log)

    async def may_continue(self, key: ServerKey) -> bool:
        """Return whether a server may run past its GPUs' time limit: it returned them, or got them again.

        Raises LedgerError.
        """
        places = await self.ledger.places()
        return any(not place.expired for place in places if ServerKey(place.owner, place.server) == key)

    # --- making -------------------------------------------------------------------------------

    async def create_secret(self, spec: dict[str, Any]) -> str:
        """Make a secret and return its id. Raises DockerError."""
        try:
            return str((await self.docker.call("create_secret", **spec))["ID"])
        except DockerConflict:
            # The call was repeated after a lost answer: the name is unique to this start.
            found = await self.docker.call("secrets", filters={"name": [spec["name"]]})
            return next(str(one["ID"]) for one in found if one["Spec"]["Name"] == spec["name"])

    async def create_service(self, spec: dict[str, Any]) -> str:
        """Make a service and return its id. Raises DockerError."""
        try:
            return str((await self.docker.call("create_service", **spec))["ID"])
        except DockerConflict:
            found = await self.docker.call("inspect_service", spec["name"])
            if found["Spec"]["Labels"].get(SPAWN_LABEL) != spec["labels"][SPAWN_LABEL]:
                raise
            return str(found["ID"])
        finally:
            self.view.poll_soon()

    # --- ending -------------------------------------------------------------------------------

    async def end(self, key: ServerKey, timeout_s: float | None = None) -> bool:
        """Remove everything of a server but its home; return whether that ended within `timeout_s`.

        If Docker does not answer, retry in the background.
        """
        if key not in self._endings:
            self._endings[key] = work = asyncio.create_task(self._end(key))
            work.add_done_callback(lambda _: self._endings.pop(key, None))
        done, _ = await asyncio.wait({self._endings[key]}, timeout=timeout_s)
        return bool(done)

    async def end_leftover(self, key: ServerKey) -> None:
        """Remove the rest of an earlier server of that name."""
        if key in self._endings or key.service in self.view.tasks or await self.service_there(key):
            await self.end(key)

    async def _end(self, key: ServerKey) -> None:
        pause_s = _FIRST_PAUSE_S
        while True:
            try:
                await self._remove(key)
                break
            except DockerError as error:
                self._log.warning("%s is not removed yet, trying again: %s", key.service, error)
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        # Not earlier: the next user of its GPUs must find them free.
        await self.ledger.free(key.owner, key.server)

    async def _remove(self, key: ServerKey) -> None:
        await self.docker.remove("remove_service", key.service)
        await self._poll_anew()
        while self.view.remains(key.service):
            await self.view.next_poll()
        for secret in await self._secrets(key):
            await self.docker.remove("remove_secret", secret["Spec"]["Name"])

    async def _poll_anew(self) -> None:
        """Return after a poll that began after this call."""
        begun = self.view.polls
        self.view.poll_soon()
        while self.view.polls <= begun:
            await self.view.next_poll()

    async def _secrets(self, key: ServerKey | None = None) -> list[dict[str, Any]]:
        filters = label_filter("server")
        if key is not None:
            filters["label"] = [*filters["label"], f"{NAME_LABEL}={key.service}"]
        return await self.docker.call("secrets", filters=filters)

    # --- after a killed hub -------------------------------------------------------------------

    async def _open(self) -> None:
        await self.view.open()
        await self._sweep()

    async def _sweep(self) -> None:
        """Remove secrets and placements without a service. Called before this hub starts servers."""
        services = await self.docker.call("services", filters=label_filter("server"))
        names = {str(one["Spec"]["Name"]) for one in services}
        for secret in await self._secrets():
            if secret["Spec"]["Labels"].get(NAME_LABEL) not in names:
                await self.docker.remove("remove_secret", secret["Spec"]["Name"])
        await self.ledger.free_lost(lambda place: server_name(place.owner, place.server) not in names)
