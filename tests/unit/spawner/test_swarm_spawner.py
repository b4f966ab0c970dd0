"""The Swarm spawner with a failing Docker daemon and ledger; tests/lab has real ones."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from jupyterhub.spawner import SpawnException
from jupyterhub.utils import format_exception

from minicluster.wire import DISK_FULL_EXIT
from minicluster_hub.engines.swarm.docker import DockerUnavailable
from minicluster_spawner.shared import SharedSwarm

from ... import messages
from .spawner_bench import IMAGE, KEY, LOG, Bench
from .spawner_bench import bench as bench


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
    bench.docker.fault = DockerUnavailable("rpc error: The swarm does not have a leader")
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
    await bench.shared.view.next_poll()
    assert await bench.spawner.poll() is None


async def test_poll_cleans_up_after_a_server_that_ended_by_itself(bench: Bench) -> None:
    await bench.spawner.start()
    bench.docker.state = {"State": "complete", "ContainerStatus": {"ExitCode": 0}}
    await bench.shared.view.next_poll()
    await bench.shared.view.next_poll()
    assert await bench.spawner.poll() == 0
    assert bench.is_empty


async def test_who_filled_the_nodes_disk_reads_on_the_spawn_page_why_the_server_ended(bench: Bench) -> None:
    await bench.spawner.start()
    bench.docker.state = {"State": "failed", "ContainerStatus": {"ExitCode": DISK_FULL_EXIT}}
    await bench.shared.view.next_poll()
    await bench.shared.view.next_poll()
    assert await bench.spawner.poll() == DISK_FULL_EXIT
    bench.spawner.clear_state()
    later = bench.new_spawner(bench.spawner.port)
    later.load_state(bench.spawner.get_state())
    assert messages.FILLED_MOST_OF_IT in await later.form()
    bench.docker.state = {"State": "running"}
    await later.start()
    assert "filled_disk" not in later.get_state()


async def test_poll_ends_a_server_whose_gpu_time_is_over(bench: Bench) -> None:
    bench.ledger.until = 1.0
    await bench.spawner.start()
    assert await bench.spawner.poll() == 0
    assert bench.is_empty


async def test_a_server_that_gave_its_gpus_back_goes_on_past_their_time(bench: Bench) -> None:
    bench.ledger.until, bench.ledger.gpus = 1.0, ("GPU-a", "GPU-b")
    await bench.spawner.start()
    (service,) = bench.docker.services.values()
    seen = {"DOCKER_RESOURCE_GPU=GPU-a,GPU-b", "NVIDIA_VISIBLE_DEVICES=GPU-a,GPU-b"}
    assert seen <= set(service["task_template"]["ContainerSpec"]["Env"])
    bench.ledger.reclaimed = True
    assert await bench.spawner.poll() is None
    bench.ledger.reclaimed = False
    assert await bench.spawner.poll() == 0


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
    assert format_exception(caught.value, only_jupyterhub=True) == (caught.value.message, None)
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
    bench.docker.fault = DockerUnavailable("no leader")
    with pytest.raises(SpawnException) as caught:
        await bench.spawner.start()
    assert caught.value.reason == "docker_away" and caught.value.status_code == 503
    assert await bench.spawner.poll() == 0


async def test_what_cannot_be_removed_now_is_removed_later(bench: Bench) -> None:
    await bench.spawner.start()
    bench.docker.fault = DockerUnavailable("no leader")
    assert not await bench.shared.end(KEY, timeout_s=0.1)
    assert bench.ledger.taken, "its GPUs may still be in use"
    bench.docker.fault = None
    assert await bench.shared.end(KEY, timeout_s=10)
    assert bench.is_empty


async def test_what_the_catalogue_offers_can_be_chosen_as_long_as_it_is_offered(bench: Bench) -> None:
    bench.ledger.offered = {"notebook": IMAGE, "vision": "127.0.0.1:5100/vision@sha256:bb"}
    assert "vision" in await bench.spawner.form()
    assert list(bench.spawner.allowed().images) == ["notebook", "vision"], "the same image stands there once"
    check = bench.spawner.apply_user_options
    await check(bench.spawner, {"image": "vision"})
    assert bench.spawner.choose({"image": "vision"}).image == "127.0.0.1:5100/vision@sha256:bb"
    assert bench.spawner.choose({}).image == IMAGE
    bench.ledger.unavailable = True
    await check(bench.spawner, {"image": "vision"})
    bench.ledger.unavailable, bench.ledger.offered = False, {"notebook": IMAGE}
    with pytest.raises(SpawnException, match=f"{messages.NO_SUCH_IMAGE} 'vision'"):
        await check(bench.spawner, {"image": "vision"})


async def test_a_server_has_what_the_job_service_wants_set_unless_it_has_its_own(bench: Bench) -> None:
    bench.ledger.environment = {"PIP_INDEX_URL": "https://pypi.lab/", "JUPYTERHUB_API_TOKEN": "other"}
    await bench.spawner.start()
    (secret,) = bench.docker.made_secrets.values()
    assert b"https://pypi.lab/" in secret["data"] and b"the-token" in secret["data"]


# --- the ledger's client against a real HTTP server ----------------------------------------------
