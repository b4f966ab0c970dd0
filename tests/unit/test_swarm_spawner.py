"""What the Swarm spawner makes of a Docker daemon and a ledger that fail; real ones are in tests/lab."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any

import pytest
import pytest_asyncio
from jupyterhub.spawner import SpawnException

from minicluster.wire import PlaceServer, ServerPlace
from minicluster_hub.engines.swarm.docker import Docker, DockerAway, DockerMissing
from minicluster_spawner.shared import ServerKey, SharedSwarm
from minicluster_spawner.swarm import MiniclusterSpawner

LOG = logging.getLogger(__name__)
KEY = ServerKey("ada", "")
IMAGE = "127.0.0.1:5100/nb@sha256:aa"


class StubDocker(Docker):
    """A Swarm of one node in a dictionary. `fault`: raised by every call while it is set."""

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

    async def logs(self, service: str, lines: int) -> str:
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
            {"ID": name, "Spec": {"Name": name, "Labels": one["labels"]}}
            for name, one in self.made_secrets.items()
        ]

    def _create_secret(self, **spec: Any) -> dict[str, Any]:
        self.made_secrets[spec["name"]] = spec
        return {"ID": spec["name"]}

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

    def _remove_secret(self, secret_id: str) -> None:
        del self.made_secrets[secret_id]


class StubLedger:
    """One node, and who has a place on it."""

    def __init__(self) -> None:
        self.taken: set[tuple[str, str]] = set()
        self.until: float | None = None

    async def place(self, owner: str, server: str, ask: PlaceServer) -> ServerPlace:
        self.taken.add((owner, server))
        return ServerPlace(owner=owner, server=server, node="pc-1", until=self.until)

    async def free(self, owner: str, server: str) -> None:
        self.taken.discard((owner, server))

    async def places(self) -> tuple[ServerPlace, ...]:
        return tuple(ServerPlace(owner=owner, server=server, node="pc-1") for owner, server in self.taken)

    async def close(self) -> None:
        pass


class Bench:
    """A spawner between a Docker and a ledger that a test can break."""

    def __init__(self, listening_port: int) -> None:
        self.docker, self.ledger = StubDocker(), StubLedger()
        self.shared = SharedSwarm(self.docker, self.ledger, LOG)  # pyright: ignore[reportArgumentType]
        self.spawner = self.new_spawner(listening_port)

    def new_spawner(self, port: int) -> MiniclusterSpawner:
        """Return a spawner as a hub has it after its own start."""
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
    """Without a hub around it."""

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


async def test_a_start_takes_a_place_a_secret_and_a_service_and_a_stop_gives_all_back(bench: Bench) -> None:
    host, port = await bench.spawner.start()
    assert (host, port) == ("127.0.0.1", bench.spawner.port)
    assert list(bench.docker.services) == [KEY.service] and bench.ledger.taken == {("ada", "")}
    assert b"the-token" in next(iter(bench.docker.made_secrets.values()))["data"]
    assert await bench.spawner.poll() is None
    await bench.spawner.stop()
    assert bench.is_empty and await bench.spawner.poll() == 0


async def test_errors_of_the_manager_stop_nobody(bench: Bench) -> None:
    await bench.spawner.start()
    bench.docker.fault = DockerAway("rpc error: The swarm does not have a leader")
    assert await bench.spawner.poll() is None
    again = bench.new_spawner(bench.spawner.port)
    again.load_state(bench.spawner.get_state())
    again.user.settings["minicluster_swarm"] = late = SharedSwarm(bench.docker, bench.ledger, LOG)  # pyright: ignore[reportArgumentType]
    assert await again.poll() is None, "a hub that starts meanwhile would stop it"
    bench.docker.fault = None
    assert await again.poll() is None
    await late.close()


@pytest.mark.parametrize(
    "state", ["new", "pending", "assigned", "accepted", "preparing", "ready", "starting"]
)
async def test_poll_calls_nothing_dead_that_is_on_its_way(bench: Bench, state: str) -> None:
    await bench.spawner.start()
    bench.docker.state = {"State": state}
    await bench.shared.view.next_look()
    assert await bench.spawner.poll() is None


async def test_poll_cleans_up_after_a_server_that_ended_by_itself(bench: Bench) -> None:
    await bench.spawner.start()
    bench.docker.state = {"State": "complete", "ContainerStatus": {"ExitCode": 0}}
    await bench.shared.view.next_look()
    await bench.shared.view.next_look()
    assert await bench.spawner.poll() == 0
    assert bench.is_empty


async def test_poll_ends_a_server_whose_gpu_time_is_over(bench: Bench) -> None:
    bench.ledger.until = 1.0
    await bench.spawner.start()
    assert await bench.spawner.poll() == 0
    assert bench.is_empty


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        ({"State": "rejected", "Err": "No such image: nb"}, "no_image"),
        ({"State": "pending", "Err": "no suitable node (insufficient resources on 1 node)"}, "no_room"),
        ({"State": "failed", "Err": "", "ContainerStatus": {"ExitCode": 1}}, "ended_at_start"),
    ],
)
async def test_a_failed_start_says_why_and_leaves_nothing(
    bench: Bench, state: dict[str, Any], reason: str
) -> None:
    bench.docker.state = state
    with pytest.raises(SpawnException) as caught:
        await bench.spawner.start()
    assert caught.value.reason == reason and not caught.value.message_html
    assert bench.is_empty and await bench.spawner.poll() == 0


async def test_a_server_that_does_not_answer_is_told(bench: Bench) -> None:
    bench.spawner.port = 1
    with pytest.raises(SpawnException) as caught:
        await bench.spawner.start()
    assert caught.value.reason == "unreachable" and "4789/udp" in caught.value.message
    assert bench.is_empty


async def test_a_service_that_somebody_removes_meanwhile_is_told(bench: Bench) -> None:
    bench.docker.state = {"State": "preparing"}
    start = asyncio.create_task(bench.spawner.start())
    while not bench.docker.services:
        await asyncio.sleep(0.01)
    bench.docker.services.clear()
    with pytest.raises(SpawnException) as caught:
        await start
    assert caught.value.reason == "removed"


async def test_a_cancelled_start_leaves_nothing(bench: Bench) -> None:
    bench.docker.state = {"State": "preparing"}
    start = asyncio.create_task(bench.spawner.start())
    while not bench.docker.services:
        await asyncio.sleep(0.01)
    assert await bench.spawner.poll() is None
    start.cancel()
    with pytest.raises(asyncio.CancelledError):
        await start
    assert bench.is_empty


async def test_what_an_earlier_hub_left_is_ended_before_a_new_start(bench: Bench) -> None:
    await bench.spawner.start()
    old = dict(bench.docker.made_secrets)
    again = bench.new_spawner(bench.spawner.port)
    await again.start()
    assert len(bench.docker.services) == 1 and not set(old) & set(bench.docker.made_secrets)


async def test_secrets_and_places_without_a_service_are_swept_by_a_new_hub(bench: Bench) -> None:
    bench.ledger.taken.add(("bob", "x"))
    labels = {"org.minicluster.name": "minicluster-server-bob--x"}
    bench.docker.made_secrets["left"] = {"labels": labels}
    await bench.shared.open()
    assert bench.is_empty


async def test_a_manager_that_is_away_refuses_a_start_in_words(bench: Bench) -> None:
    bench.docker.fault = DockerAway("no leader")
    with pytest.raises(SpawnException) as caught:
        await bench.spawner.start()
    assert caught.value.reason == "docker_away" and caught.value.status_code == 503
    assert await bench.spawner.poll() == 0


async def test_what_cannot_be_removed_now_is_removed_later(bench: Bench) -> None:
    await bench.spawner.start()
    bench.docker.fault = DockerAway("no leader")
    assert not await bench.shared.end(KEY, patience_s=0.1)
    assert bench.ledger.taken, "its GPUs may still be in use"
    bench.docker.fault = None
    assert await bench.shared.end(KEY, patience_s=10)
    assert bench.is_empty


# --- the ledger's client against a real HTTP server ----------------------------------------------
