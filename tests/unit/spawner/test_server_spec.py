"""A notebook server as data, reasons for a failed start, progress messages: pure, without Docker."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from minicluster_hub.engines.swarm.gpus.share import SharedGpu
from minicluster_hub.engines.swarm.names import NAME_LABEL, OWNER_LABEL, ROLE_LABEL, SERVER_LABEL
from minicluster_hub.engines.swarm.view import SwarmNode, SwarmTask
from minicluster_spawner.container import HOME_LOST, HOME_UNUSABLE, prepare_home, read_environment
from minicluster_spawner.options import GB, Choice
from minicluster_spawner.progress import StartProgress, StartStage, placed, task_stage
from minicluster_spawner.refusals import is_over, not_listening, refusal
from minicluster_spawner.server_spec import (
    UNTIL_LABEL,
    NfsHomes,
    ServerLaunch,
    ServerSettings,
    clean_environment,
    further_mount,
    home_mount,
    secret_specs,
    service_spec,
)

NODE = SwarmNode("n1", "pc-1", "10.0.0.1", True, True, "active", (), {}, "26.1.5", 2**34, 4.0)
CHOICE = Choice(image_name="CPU", image="127.0.0.1:5100/nb@sha256:aa", cpus=2.0, memory_bytes=4 * GB)
LAUNCH = ServerLaunch(
    service="minicluster-server-ada",
    owner="ada",
    server="",
    spawn_id="0123456789ab",
    choice=CHOICE,
    node=NODE,
)
SETTINGS = ServerSettings()
TOKEN = "a-token-of-the-hub"


def spec(settings: ServerSettings = SETTINGS, **choice: Any) -> dict[str, Any]:
    launch = dataclasses.replace(LAUNCH, choice=dataclasses.replace(CHOICE, **choice))
    secrets = secret_specs(launch, {"JUPYTERHUB_API_TOKEN": TOKEN}, {})
    return service_spec(launch, {one["name"]: f"id-{i}" for i, one in enumerate(secrets)}, settings)


def container(settings: ServerSettings = SETTINGS, **choice: Any) -> dict[str, Any]:
    return spec(settings, **choice)["task_template"]["ContainerSpec"]


def test_a_server_is_pinned_walled_and_stays_shut_down() -> None:
    made = spec()
    template = made["task_template"]
    assert made["name"] == "minicluster-server-ada" and made["endpoint_spec"] == {"Mode": "dnsrr"}
    assert template["Placement"] == {"Constraints": ["node.id==n1"]}
    assert template["RestartPolicy"] == {"Condition": "none"}
    assert template["Networks"] == [{"Target": "minicluster", "Aliases": ["minicluster-server-0123456789ab"]}]
    inside = template["ContainerSpec"]
    assert inside["CapabilityDrop"] == ["ALL"] and inside["Privileges"] == {"NoNewPrivileges": True}
    assert inside["User"] == "1000" and inside["Init"] is True
    assert inside["Command"][:5] == ["python", "-P", "-s", "-m", "minicluster_spawner.container"]


def test_labels_stand_at_the_service_and_at_its_container() -> None:
    made = spec()
    marks = made["labels"]
    assert made["task_template"]["ContainerSpec"]["Labels"] == marks
    assert (marks[ROLE_LABEL], marks[NAME_LABEL]) == ("server", made["name"])
    assert (marks[OWNER_LABEL], marks[SERVER_LABEL]) == ("ada", "") and UNTIL_LABEL not in marks
    assert dataclasses.replace(LAUNCH, until=17.5).labels[UNTIL_LABEL] == "17.5"


def test_the_service_shows_no_token() -> None:
    secrets = secret_specs(LAUNCH, {"JUPYTERHUB_API_TOKEN": TOKEN}, {"internal-ssl.key": b"key"})
    ids = {one["name"]: "id" for one in secrets}
    assert TOKEN not in json.dumps(service_spec(LAUNCH, ids, SETTINGS))
    env, key = secrets
    assert json.loads(env["data"])["env"] == {"JUPYTERHUB_API_TOKEN": TOKEN} and key["data"] == b"key"
    assert all(len(one["name"]) <= 64 for one in secrets)


def test_secrets_are_files_that_only_the_server_reads() -> None:
    (secret,) = container()["Secrets"]
    assert secret["File"] == {"Name": "server.json", "UID": "1000", "GID": "1000", "Mode": 0o400}


def test_the_home_is_a_named_volume_and_shared_memory_is_large() -> None:
    home, shm = container()["Mounts"]
    assert (home["Type"], home["Source"], home["Target"]) == (
        "volume",
        "minicluster-home-ada",
        "/home/mini",
    )
    assert shm["Type"] == "tmpfs" and shm["Target"] == "/dev/shm"
    assert shm["TmpfsOptions"]["SizeBytes"] == 2**30


def test_a_shared_home_never_takes_a_local_volume_of_that_name() -> None:
    homes = NfsHomes(options="addr=10.0.0.5,rw", device=":/export/homes/%s")
    mount = home_mount("ada", ServerSettings(shared_homes=homes))
    assert mount["Source"] == "minicluster-sharedhome-ada"
    assert mount["VolumeOptions"]["NoCopy"] is True
    assert mount["VolumeOptions"]["DriverConfig"] == {
        "Name": "local",
        "Options": {"type": "nfs", "o": "addr=10.0.0.5,rw", "device": ":/export/homes/ada"},
    }


def test_a_users_name_cannot_leave_its_folder_of_the_file_server() -> None:
    homes = NfsHomes(options="", device=":/homes/%s")
    options = home_mount("../../etc,x", ServerSettings(shared_homes=homes))["VolumeOptions"]
    folder = options["DriverConfig"]["Options"]["device"].removeprefix(":/homes/")
    assert "/" not in folder and "." not in folder and "," not in folder


def test_named_volumes_are_volumes_and_paths_are_folders() -> None:
    assert further_mount("data", "/data", read_only=True)["Type"] == "volume"
    assert further_mount("/srv/data", "/data", read_only=False)["Type"] == "bind"


def test_limits_and_guarantees() -> None:
    resources = spec()["task_template"]["Resources"]
    assert resources == {"Limits": {"NanoCPUs": 2_000_000_000, "MemoryBytes": 4 * GB, "Pids": 4096}}
    settings = ServerSettings(cpu_guarantee=3.0, memory_guarantee_bytes=GB)
    reserved = spec(settings)["task_template"]["Resources"]["Reservations"]
    assert reserved == {"NanoCPUs": 2_000_000_000, "MemoryBytes": GB}


def test_without_a_choice_a_server_leaves_the_nodes_reserve_and_half_of_the_rest() -> None:
    limits = spec(cpus=None, memory_bytes=None)["task_template"]["Resources"]["Limits"]
    assert limits == {"NanoCPUs": 3_500_000_000, "MemoryBytes": 7 * GB, "Pids": 4096}
    assert container(memory_bytes=GB)["Mounts"][1]["TmpfsOptions"]["SizeBytes"] == GB // 2


def test_no_more_cpus_than_the_node_has() -> None:
    assert spec(cpus=64.0)["task_template"]["Resources"]["Limits"]["NanoCPUs"] == 4_000_000_000


def test_gpus_are_reserved_and_hidden_from_everybody_else() -> None:
    assert container()["Env"] == ["NVIDIA_VISIBLE_DEVICES=void"] and container(gpus=2)["Env"] == []
    reserved = spec(gpus=2)["task_template"]["Resources"]["Reservations"]
    assert reserved["GenericResources"] == [{"DiscreteResourceSpec": {"Kind": "GPU", "Value": 2}}]


def test_gpus_that_are_held_for_a_server_are_named_and_not_asked_of_swarm() -> None:
    launch = dataclasses.replace(LAUNCH, choice=dataclasses.replace(CHOICE, gpus=2), gpus=("GPU-a", "GPU-b"))
    template = service_spec(launch, {}, SETTINGS)["task_template"]
    assert template["ContainerSpec"]["Env"] == [
        "DOCKER_RESOURCE_GPU=GPU-a,GPU-b",
        "NVIDIA_VISIBLE_DEVICES=GPU-a,GPU-b",
    ]
    assert "GenericResources" not in template["Resources"].get("Reservations", {})


def test_half_a_gpu_comes_with_its_daemons_pipes_and_memory() -> None:
    shared = SharedGpu("GPU-a", 1)
    launch = dataclasses.replace(
        LAUNCH, choice=dataclasses.replace(CHOICE, gpus=0.5), gpus=("GPU-a",), shared=shared
    )
    made = service_spec(launch, {}, ServerSettings())["task_template"]
    assert "GenericResources" not in made["Resources"].get("Reservations", {})
    environment = made["ContainerSpec"]["Env"]
    assert "NVIDIA_VISIBLE_DEVICES=GPU-a" in environment and "MINICLUSTER_GPU_SHARE=0.5" in environment
    mounts = {one["Target"]: one["Source"] for one in made["ContainerSpec"]["Mounts"] if one.get("Source")}
    assert (mounts["/dev/shm"], mounts["/run/minicluster-mps"]) == ("minicluster-shm-1", "minicluster-mps-1")


def test_names_that_reach_for_gpus_or_the_loader_are_left_out() -> None:
    given = dict.fromkeys(
        ["NVIDIA_VISIBLE_DEVICES", "DOCKER_RESOURCE_GPU", "CUDA_VISIBLE_DEVICES", "LD_PRELOAD", "LDA", "A"],
        "x",
    )
    kept, refused = clean_environment(given)
    assert sorted(kept) == ["A", "LDA"] and len(refused) == 4


# --- why it did not start ------------------------------------------------------------------------


def task(state: str, error: str = "", **more: Any) -> SwarmTask:
    values: dict[str, Any] = {
        "service_name": "minicluster-server-ada",
        "labels": {},
        "task_id": "t1",
        "node_id": "n1",
        "state": state,
        "desired": "running",
        "error": error,
        "exit_code": None,
        "container_id": "",
        "image": "image",
        "addresses": (),
    }
    return SwarmTask(**(values | more))


@pytest.mark.parametrize(
    ("seen", "reason"),
    [
        (task("rejected", "No such image: 127.0.0.1:5100/nb@sha256:aa"), "no_image"),
        (task("pending", "no suitable node (insufficient resources on 1 node)"), "no_room"),
        (task("pending", "no suitable node (scheduling constraints not satisfied)"), "no_suitable_node"),
        (task("rejected", "write /var/lib/docker/tmp/x: no space left on device"), "disk_full"),
        (
            task("rejected", "failed to mount local volume: mount :/homes/ada: connection refused"),
            "mount_failed",
        ),
        (task("failed", "task: non-zero exit (81)", exit_code=HOME_LOST), "home_lost"),
        (task("failed", "task: non-zero exit (82)", exit_code=HOME_UNUSABLE), "home_unusable"),
        (task("failed", "task: non-zero exit (137)", exit_code=137), "killed"),
        (task("failed", "task: non-zero exit (1)", exit_code=1), "ended_at_start"),
        (task("failed", "starting container failed: something new"), "not_started"),
    ],
)
def test_the_user_hears_dockers_words_what_they_mean_and_whom_to_ask(seen: SwarmTask, reason: str) -> None:
    why = refusal(seen, "pc-1", "CPU", "ImportError: no module\n")
    assert why.reason == reason
    assert seen.error in why.message and "pc-1" in why.message and "`doctor`" in why.message
    assert ("ImportError" in why.message) == (reason == "ended_at_start")
    assert "ImportError" in why.log


def test_an_unreachable_server_is_told_with_the_ports_to_open() -> None:
    why = not_listening("pc-2", "minicluster-server-ada", 8888, "")
    assert why.reason == "unreachable" and "4789/udp" in why.message


@pytest.mark.parametrize(
    "state",
    ["new", "allocated", "pending", "assigned", "accepted", "preparing", "ready", "starting", "running"],
)
def test_starting_is_not_dead(state: str) -> None:
    assert not is_over(task(state))


def test_what_ended_or_is_ended_by_swarm_is_over() -> None:
    assert all(is_over(task(state)) for state in ("complete", "failed", "rejected", "shutdown", "orphaned"))
    # Swarm's desired state for tasks of a lost node, whatever their last state.
    assert is_over(task("running", desired="shutdown"))


# --- progress messages ---------------------------------------------------------------------------


def test_progress_goes_forward() -> None:
    states = ["new", "pending", "assigned", "preparing", "ready", "starting", "running"]
    stages = [placed("pc-1", 0, None), *(task_stage(task(state), "pc-1") for state in states)]
    percents = [stage.percent for stage in stages]
    assert percents == sorted(percents) and percents[-1] < 100
    pulling = [
        task_stage(task("preparing"), "pc-1", 10**9, waited_s).percent for waited_s in range(0, 600, 20)
    ]
    assert pulling == sorted(pulling) and pulling[-1] <= 65


def test_a_pull_tells_its_size_and_its_time() -> None:
    assert task_stage(task("preparing"), "pc-1", 450_000_000).message.endswith("(up to 0.5 GB)")
    assert "30 s so far" in task_stage(task("preparing"), "pc-1", None, 31.0).message


def test_the_time_of_a_gpu_is_told() -> None:
    assert "1 GPU until " in placed("pc-1", 1, 1_700_000_000.0).message


async def test_a_start_is_shown_to_everybody_from_its_beginning() -> None:
    progress = StartProgress()
    first, again, back = StartStage(10, "a"), StartStage(10, "a"), StartStage(5, "b")
    received: list[StartStage] = []

    async def listen() -> None:
        async for stage in progress:
            received.append(stage)

    progress.report(first)
    listener = asyncio.create_task(listen())
    await asyncio.sleep(0)
    progress.report(again)
    progress.report(back)
    await asyncio.sleep(0)
    listener.cancel()
    assert received == [first, StartStage(10, "b")]


async def test_who_listens_before_a_start_begins_sees_that_start_only() -> None:
    """The spawn-pending page asks once the hub has accepted the start, which is before the spawner begins."""
    progress = StartProgress()
    progress.report(StartStage(95, "of the former start"))
    progress.clear()
    received: list[StartStage] = []

    async def listen() -> None:
        async for stage in progress:
            received.append(stage)

    listener = asyncio.create_task(listen())
    await asyncio.sleep(0)
    progress.clear()
    progress.report(StartStage(10, "Placed"))
    await asyncio.sleep(0)
    listener.cancel()
    assert received == [StartStage(10, "Placed")]


# --- the container's first process ---------------------------------------------------------------


def test_a_home_is_made_once_and_missed_when_it_is_gone(tmp_path: Path) -> None:
    first, other = tmp_path / "first", tmp_path / "other"
    first.mkdir()
    other.mkdir()
    assert prepare_home(first, expected=False) == 0
    assert (first / "quickstart.ipynb").is_file()
    assert prepare_home(first, expected=True) == 0
    assert prepare_home(other, expected=True) == HOME_LOST
    assert not list(other.iterdir())


def test_the_environment_comes_from_the_secret(tmp_path: Path) -> None:
    (data,) = (one["data"] for one in secret_specs(LAUNCH, {"JUPYTERHUB_API_TOKEN": TOKEN}, {}))
    secret = tmp_path / "server.json"
    secret.write_bytes(data)
    assert read_environment(secret) == {"JUPYTERHUB_API_TOKEN": TOKEN}
