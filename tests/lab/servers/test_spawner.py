"""The Swarm spawner on three Docker hosts: it lacks the known defects of dockerspawner."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime

import pytest

from ... import messages
from ..machines.images import NOTEBOOK_IMAGE
from .spawner_hub import WITHIN_S, SpawnerHub, running_hub, wait

pytestmark = pytest.mark.apart("it wants machines without a cluster")

EMPTY = {"services": [], "secrets": [], "places": []}


@pytest.fixture(scope="module")
def hub(request: pytest.FixtureRequest) -> Iterator[SpawnerHub]:
    with running_hub(request) as made:
        yield made


@pytest.fixture
def user(request: pytest.FixtureRequest, hub: SpawnerHub) -> Iterator[str]:
    """A new user; at the end, stop the server and check that nothing of it is left."""
    name = f"u{time.time_ns() // 1_000_000}"
    hub.add_user(name)
    yield name
    if hub.server(name):
        hub.stop_server(name)
    wait(lambda: hub.remains() == EMPTY, WITHIN_S, f"nothing is left: {hub.remains()}")
    for node in hub.lab.nodes:
        node.run(["docker", "volume", "rm", "--force", f"minicluster-home-{name}"], check=False)


def service(name: str) -> str:
    return f"minicluster-server-{name}"


def test_a_server_starts_on_the_node_that_was_chosen_small_in_rights(hub: SpawnerHub, user: str) -> None:
    hub.run_server(user, node="node2", cpus=0.5, memory_gb=1.5)
    assert hub.node_of(service(user)).name == "node2"
    spec = json.loads(hub.docker("service", "inspect", service(user)))[0]["Spec"]["TaskTemplate"]
    assert spec["RestartPolicy"]["Condition"] == "none"
    assert spec["Resources"]["Limits"] == {"NanoCPUs": 500_000_000, "MemoryBytes": 3 * 2**29, "Pids": 4096}
    status = hub.inside(service(user), "cat", "/proc/self/status")
    assert "CapBnd:\t0000000000000000" in status and "Uid:\t1000" in status
    assert hub.inside(service(user), "df", "--output=size", "-B1", "/dev/shm").split()[-1] == str(3 * 2**28)


def test_no_inspection_shows_a_token(hub: SpawnerHub, user: str) -> None:
    hub.run_server(user)
    environment = json.loads(hub.inside(service(user), "cat", "/run/secrets/server.json"))["env"]
    token = environment["JUPYTERHUB_API_TOKEN"]
    node = hub.node_of(service(user))
    container = hub.docker("ps", "--quiet", f"--filter=name={service(user)}.1", node=node)
    assert token not in hub.docker("service", "inspect", service(user))
    assert token not in hub.docker("inspect", container, node=node)
    assert token not in hub.log()
    assert (
        environment["GREETING"] == "hello"
        and "LD_PRELOAD" not in environment
        and environment["MINICLUSTER_URL"]
    )
    assert hub.inside(service(user), "stat", "-c", "%a %u", "/run/secrets/server.json") == "400 1000"


def test_the_home_and_other_volumes_are_named_volumes(hub: SpawnerHub, user: str) -> None:
    hub.run_server(user)
    hub.inside(service(user), "sh", "-c", "echo mine > /home/mini/note")
    mounts = json.loads(hub.inside(service(user), "python", "-c", _MOUNTS))
    assert "/data" in mounts and "/home/mini" in mounts
    node = hub.node_of(service(user))
    assert f"minicluster-home-{user}" in hub.docker("volume", "ls", "--format={{.Name}}", node=node)


_MOUNTS = "import json; print(json.dumps([line.split()[1] for line in open('/proc/mounts')]))"


def test_a_server_goes_back_to_its_home_and_nowhere_else(hub: SpawnerHub, user: str) -> None:
    hub.run_server(user, node="node3")
    hub.inside(service(user), "sh", "-c", "echo mine > /home/mini/note")
    hub.stop_server(user)
    assert "home" in hub.refused(user, node="node1")
    hub.run_server(user)
    assert hub.inside(service(user), "cat", "/home/mini/note") == "mine"
    assert hub.node_of(service(user)).name == "node3"


def test_a_second_start_is_reached_at_once(hub: SpawnerHub, user: str) -> None:
    """Resolvers cache a service's name for ten minutes, so each start has its own name."""
    first_s = _timed(lambda: hub.run_server(user))
    hub.stop_server(user)
    second_s = _timed(lambda: hub.run_server(user))
    assert second_s < first_s + 60


def _timed(do: Callable[[], object]) -> float:
    begun_s = time.monotonic()
    do()
    return time.monotonic() - begun_s


def test_a_lost_home_is_reported_and_never_replaced_in_silence(hub: SpawnerHub, user: str) -> None:
    hub.run_server(user, node="node2")
    hub.stop_server(user)
    volume = f"minicluster-home-{user}"
    wait(lambda: _removed(hub, volume), WITHIN_S, "the volume is removed")
    assert "Your home on node2 is gone" in hub.refused(user)
    assert "Your home on node2 is gone" in hub.refused(user)
    hub.run_server(user, new_home=True)
    hub.stop_server(user)
    hub.run_server(user)


def _removed(hub: SpawnerHub, volume: str) -> bool:
    node = hub.lab.nodes[1]
    return node.run(["docker", "volume", "rm", "--force", volume], check=False).returncode == 0


def test_a_users_own_shutdown_stays_one_and_leaves_nothing(hub: SpawnerHub, user: str) -> None:
    hub.run_server(user)
    assert hub.ask_server(user, "POST", "api/shutdown").status_code == 200
    wait(
        lambda: hub.remains() == EMPTY and hub.server(user) is None, WITHIN_S, "the hub sees it and cleans up"
    )


def test_named_servers_share_the_home(hub: SpawnerHub, user: str) -> None:
    hub.run_server(user)
    hub.run_server(user, "second")
    second = f"{service(user)}--second"
    hub.inside(service(user), "touch", "/home/mini/shared")
    assert hub.inside(second, "ls", "/home/mini/shared")
    hub.stop_server(user, "second")
    assert hub.server(user)


def test_a_missing_image_is_told_at_once(hub: SpawnerHub, user: str) -> None:
    text = hub.refused(user, image="gone")
    assert f"{messages.COULD_NOT_GET_IMAGE} gone" in text and "No such image" in text and "`doctor`" in text
    assert hub.remains() == EMPTY


def test_no_room_is_told_at_once(hub: SpawnerHub, user: str) -> None:
    """A service outside of Minicluster holds the node's GPUs."""
    thief = [f"--generic-resource=GPU={2}", "--constraint=node.hostname==node2", "--detach", "--name=thief"]
    image = f"{hub.lab.registry.host}/{NOTEBOOK_IMAGE}"
    hub.docker("service", "create", *thief, image, "sleep", "600")
    try:
        wait(lambda: "Running" in hub.docker("service", "ps", "thief"), WITHIN_S, "the thief has its GPUs")
        text = hub.refused(user, node="node2", gpus=1)
        assert "node2 has no room" in text and "insufficient resources" in text
    finally:
        hub.docker("service", "rm", "thief")


def test_what_is_not_allowed_is_refused_by_rest_too(hub: SpawnerHub, user: str) -> None:
    for options in ({"image": "evil"}, {"cpus": 99}, {"gpus": 3}, {"mounts": ["/"]}, {"node": "nowhere"}):
        answer = hub.start_server(user, **options)
        assert answer.status_code in (400, 409), answer.text
    assert hub.remains() == EMPTY


def test_a_gpu_is_held_for_its_time_and_given_back(hub: SpawnerHub, user: str) -> None:
    hub.run_server(user, gpus=2, gpu_hours=20 / 3600, node="node1")
    environment = hub.inside(service(user), "env")
    assert "DOCKER_RESOURCE_GPU=" in environment and "NVIDIA_VISIBLE_DEVICES=void" not in environment
    (place,) = hub.places()
    assert len(place["slots"]) == 2
    wait(lambda: hub.remains() == EMPTY, WITHIN_S, "the time is over")


def test_idle_gpus_go_to_others_and_the_server_stays(hub: SpawnerHub, user: str) -> None:
    before = hub.run_server(user, gpus=2, gpu_hours=30 / 3600, node="node1")
    gpus = hub.inside(service(user), "sh", "-c", "echo $DOCKER_RESOURCE_GPU").split(",")
    assert len(gpus) == 2 and hub.names("service", "gpus")

    def given_back() -> bool:
        hub.play_data_agent("node1", gpus, idle_s=4000.0)
        return not hub.names("service", "gpus") and hub.places()[0]["reclaimed"]

    wait(given_back, WITHIN_S, "the GPUs go back")
    taker = ["--generic-resource=GPU=2", "--constraint=node.hostname==node1", "--detach", "--name=taker"]
    hub.docker("service", "create", *taker, f"{hub.lab.registry.host}/{NOTEBOOK_IMAGE}", "sleep", "600")
    try:
        wait(lambda: "Running" in hub.docker("service", "ps", "taker"), WITHIN_S, "another has them")
        # The GPUs' time is over, but this server has none, so it may stay.
        time.sleep(max(0.0, 35 - (time.time() - _moment(before["started"]))))
        after = hub.server(user)
        assert after and after["ready"] and after["started"] == before["started"]
        assert hub.ask_server(user, "GET", "api/status").status_code == 200
    finally:
        hub.docker("service", "rm", "taker")


def _moment(started: str) -> float:
    return datetime.fromisoformat(started).timestamp()


def test_without_a_gpu_none_is_seen(hub: SpawnerHub, user: str) -> None:
    hub.run_server(user)
    environment = hub.inside(service(user), "env")
    assert "NVIDIA_VISIBLE_DEVICES=void" in environment and "DOCKER_RESOURCE_GPU" not in environment


def test_the_pending_page_tells_where_it_stands(hub: SpawnerHub, user: str) -> None:
    with ThreadPoolExecutor(1) as pool:
        start = pool.submit(hub.start_server, user)
        wait(lambda: (hub.server(user) or {}).get("pending") == "spawn", WITHIN_S, "the start is pending")
        events = hub.progress(user)
        assert start.result().status_code in (201, 202)
    shown = [event["message"] for event in events]
    assert any("Placed on node" in message for message in shown), shown
    percents = [event["progress"] for event in events]
    assert percents == sorted(percents) and events[-1]["ready"]


def test_many_users_start_at_once(hub: SpawnerHub) -> None:
    names = [f"crowd{number}" for number in range(6)]
    for name in names:
        hub.add_user(name)
    with ThreadPoolExecutor(len(names)) as pool:
        list(pool.map(hub.run_server, names))
        assert len(hub.remains()["services"]) == len(names)
        list(pool.map(hub.stop_server, names))
    wait(lambda: hub.remains() == EMPTY, WITHIN_S, "all of it is gone")


def test_a_new_hub_finds_the_servers_of_the_old_one(hub: SpawnerHub, user: str) -> None:
    before = hub.run_server(user)
    hub.kill()
    hub.start_again()
    wait(lambda: (hub.server(user) or {}).get("ready"), WITHIN_S, "the server is found again")
    after = hub.server(user)
    assert after and after["started"] == before["started"]
    assert hub.ask_server(user, "GET", "api/status").status_code == 200


@pytest.mark.parametrize("after_s", [0.1, 0.6])
def test_a_hub_killed_while_a_server_starts_loses_nothing(hub: SpawnerHub, user: str, after_s: float) -> None:
    with ThreadPoolExecutor(1) as pool:
        start = pool.submit(hub.start_server, user)
        time.sleep(after_s)
        hub.kill()
        assert start.exception() or start.result().status_code
    hub.start_again()
    wait(lambda: (hub.server(user) or {"ready": True})["ready"], WITHIN_S, "the server runs or is gone")
    if not hub.server(user):  # The next start releases the slots that the hub had reserved for it.
        hub.run_server(user)


def test_servers_of_a_lost_node_are_told_and_their_home_is_waited_for(hub: SpawnerHub, user: str) -> None:
    node = hub.lab.nodes[2]
    hub.run_server(user, node=node.name)
    hub.inside(service(user), "touch", "/home/mini/note")
    node.cut()
    try:
        wait(lambda: hub.server(user) is None, WITHIN_S, "the hub sees that the server is lost")
        text = hub.refused(user)
        assert (
            f"the {messages.HOME_IS_ON_NODE.format(user=user, node=node.name)}, which is down" in text.lower()
        )
    finally:
        node.plug()
    wait(
        lambda: "Ready" in hub.docker("node", "ls", f"--filter=name={node.name}"),
        WITHIN_S,
        "the node is back",
    )
    wait(lambda: hub.start_server(user).status_code < 400, WITHIN_S, "the ledger knows that the node is back")
    wait(lambda: (hub.server(user) or {}).get("ready"), WITHIN_S, "the server is ready")
    assert hub.inside(service(user), "ls", "/home/mini/note")
