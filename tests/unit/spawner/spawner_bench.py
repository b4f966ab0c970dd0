"""A Swarm spawner with a fake Docker and a fake ledger, which fail when a test wants it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any

import pytest_asyncio

from minicluster.wire import PlaceServer, ServerPlacement
from minicluster_hub.engines.swarm.docker import Docker, DockerMissing
from minicluster_spawner.ledger import LedgerUnavailable
from minicluster_spawner.shared import ServerKey, SharedSwarm
from minicluster_spawner.swarm import MiniclusterSpawner

LOG = logging.getLogger(__name__)
KEY = ServerKey("ada", "")
IMAGE = "127.0.0.1:5100/nb@sha256:aa"


class StubDocker(Docker):
    """A Swarm of one node in a dictionary. `fault`: if set, every call raises it."""

    def __init__(self) -> None:
        super().__init__(connect=lambda: SimpleNamespace(close=lambda: None), retry_s=0.0)
        self.fault: Exception | None = None
        self.services: dict[str, dict[str, Any]] = {}
        self.made_secrets: dict[str, dict[str, Any]] = {}
        self.state: dict[str, Any] = {"State": "running"}
        self.desired = "running"

    def watch(self, kind: str, on_event: Callable[[], None]) -> Any:
        return SimpleNamespace(close=lambda: None)

    async def call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        await asyncio.sleep(0)
        if self.fault is not None:
            raise self.fault
        return getattr(self, f"_{method}")(*args, **kwargs)

    async def logs(self, service: str, lines: int, log: object) -> str:
        return "the last line\n"

    def _nodes(self) -> list[dict[str, Any]]:
        status = {"State": "ready", "Addr": "127.0.0.1"}
        return [{"ID": "n1", "Description": {"Hostname": "pc-1"}, "Status": status}]

    def _tasks(self, filters: Any) -> list[dict[str, Any]]:
        return [
            {
                "ID": f"task-of-{name}",
                "NodeID": "n1",
                "DesiredState": self.desired,
                "Spec": {"ContainerSpec": service["task_template"]["ContainerSpec"]},
                "Status": self.state,
                "NetworksAttachments": [{"Addresses": ["127.0.0.1/8"]}],
            }
            for name, service in self.services.items()
        ]

    def _services(self, filters: Any) -> list[dict[str, Any]]:
        return [{"Spec": {"Name": name}} for name in self.services]

    def _secrets(self, filters: Any) -> list[dict[str, Any]]:
        return [
            {"ID": f"id-of-{name}", "Spec": {"Name": name, "Labels": one["labels"]}}
            for name, one in self.made_secrets.items()
        ]

    def _create_secret(self, **spec: Any) -> dict[str, Any]:
        self.made_secrets[spec["name"]] = spec
        return {"ID": f"id-of-{spec['name']}"}

    def _create_service(self, **spec: Any) -> dict[str, Any]:
        self.services[spec["name"]] = spec
        return {"ID": f"id-of-{spec['name']}"}

    def _inspect_service(self, name: str) -> dict[str, Any]:
        if name not in self.services:
            raise DockerMissing(f"service {name} not found")
        return {"ID": f"id-of-{name}"}

    def _remove_service(self, name: str) -> None:
        if self.services.pop(name, None) is None:
            raise DockerMissing(f"service {name} not found")

    def _remove_secret(self, name: str) -> None:
        """Remove a secret by its name only: the Docker proxy refuses ids."""
        del self.made_secrets[name]


class StubLedger:
    """One node, and the servers that have slots on it."""

    def __init__(self) -> None:
        self.taken: set[tuple[str, str]] = set()
        self.until: float | None = None
        self.gpus: tuple[str, ...] = ()
        self.reclaimed = False
        self.environment: dict[str, str] = {}
        self.offered: dict[str, str] = {}
        self.unavailable = False

    async def place(self, owner: str, server: str, ask: PlaceServer) -> ServerPlacement:
        self.taken.add((owner, server))
        return ServerPlacement(
            owner=owner,
            server=server,
            node="pc-1",
            until=self.until,
            environment=self.environment,
            gpus=self.gpus,
        )

    async def images(self) -> dict[str, str]:
        if self.unavailable:
            raise LedgerUnavailable("the job service does not answer")
        return self.offered

    async def free(self, owner: str, server: str) -> None:
        self.taken.discard((owner, server))

    async def free_lost(self, is_lost: Callable[[ServerPlacement], bool]) -> None:
        for place in filter(is_lost, await self.places()):
            await self.free(place.owner, place.server)

    async def places(self) -> tuple[ServerPlacement, ...]:
        return tuple(
            ServerPlacement(owner=owner, server=server, node="pc-1", expired=not self.reclaimed)
            for owner, server in self.taken
        )

    async def close(self) -> None:
        pass


class Bench:
    """A spawner with a Docker and a ledger that tests can break."""

    def __init__(self, listening_port: int) -> None:
        self.docker, self.ledger = StubDocker(), StubLedger()
        self.shared = SharedSwarm(self.docker, self.ledger, LOG)  # pyright: ignore[reportArgumentType]
        self.spawner = self.new_spawner(listening_port)

    def new_spawner(self, port: int) -> MiniclusterSpawner:
        """Return a spawner as created by a hub after its start."""
        user = SimpleNamespace(
            name="ada",
            settings={"minicluster_swarm": self.shared},
            url="/user/ada/",
            escaped_name="ada",
            orm_user=SimpleNamespace(orm_spawners={}),
        )
        spawner = _Spawner(user=user, image=IMAGE, port=port, listen_timeout_s=0.3, pending_patience_s=0.1)
        spawner.orm_spawner = SimpleNamespace(name="", user_options={}, server=None, state=None)
        return spawner

    @property
    def is_empty(self) -> bool:
        return not (self.docker.services or self.docker.made_secrets or self.ledger.taken)


class _Spawner(MiniclusterSpawner):
    """A spawner without a hub."""

    internal_hostname = "127.0.0.1"

    def get_env(self) -> dict[str, str]:
        return {"JUPYTERHUB_API_TOKEN": "the-token"}


@pytest_asyncio.fixture
async def bench() -> AsyncIterator[Bench]:
    server = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0)
    made = Bench(server.sockets[0].getsockname()[1])
    yield made
    made.docker.fault = None
    if made.docker.services:
        await made.spawner.stop()
    assert made.is_empty
    await made.shared.close()
    server.close()
