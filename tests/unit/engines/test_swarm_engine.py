"""The engine `swarm` without a Swarm: specs as data, its view from Docker's answers, messages."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minicluster_hub.engines.base import TaskLaunch, readable
from minicluster_hub.engines.swarm.docker import _without_frame_headers
from minicluster_hub.engines.swarm.engine import SwarmEngine
from minicluster_hub.engines.swarm.exit_reasons import exit_reason
from minicluster_hub.engines.swarm.lighthouses import lighthouse_spec
from minicluster_hub.engines.swarm.names import (
    ADDRESS_LABEL,
    label_filter,
    labels,
    safe,
    server_name,
    task_name,
)
from minicluster_hub.engines.swarm.spec import TaskSettings, network_spec, secret_spec, service_spec
from minicluster_hub.engines.swarm.view import images_of, nodes_of, relayed, slot_kinds, tasks_of

from ... import messages

LAUNCH = TaskLaunch(
    task_id=12,
    gang_id=4,
    owner="ada@lab.org",
    node="pc-1",
    slots=(0, 1),
    token="the-token",
    service_urls=("http://10.0.0.1:8082/services/minicluster/",),
    job_id=7,
    attempt_id=9,
)
SETTINGS = TaskSettings(image="127.0.0.1:5100/minicluster/notebook@sha256:" + "a" * 64)


def raw_node(node_id: str, hostname: str, **more: Any) -> dict[str, Any]:
    """A node as listed by the API."""
    resources = {"NanoCPUs": 8_000_000_000, "MemoryBytes": 2**34, "GenericResources": more.pop("gpus", None)}
    return {
        "ID": node_id,
        "Spec": {"Role": "worker", "Availability": "active", "Labels": {}, **more.pop("spec", {})},
        "Description": {
            "Hostname": hostname,
            "Resources": resources,
            "Engine": {"EngineVersion": "26.1.5"},
        },
        "Status": {"State": "ready", "Addr": "10.0.0.2", **more.pop("status", {})},
        **more,
    }


def raw_task(state: str, created: str = "2026-01-01T00:00:00Z", **more: Any) -> dict[str, Any]:
    """A task of LAUNCH's service as listed by the API."""
    marks = labels("task", name=task_name(12), task=12, gang=4)
    return {
        "ID": f"id-{created}-{state}",
        "CreatedAt": created,
        "ServiceID": "s1",
        "NodeID": "n1",
        "DesiredState": more.pop("desired", "running"),
        "Spec": {"ContainerSpec": {"Image": SETTINGS.image, "Labels": marks}},
        "Status": {"State": state, "Err": more.pop("error", ""), **more},
    }


def test_a_node_has_the_images_that_ran_there() -> None:
    assert images_of([raw_task("running"), raw_task("complete")]) == {(SETTINGS.image, "n1")}
    assert not images_of([raw_task("preparing"), raw_task("rejected")])


NODE = nodes_of([raw_node("n1", "pc-1")])[0]


def test_a_task_is_pinned_walled_and_small_in_rights() -> None:
    spec = service_spec(LAUNCH, NODE, ("gpu", "gpu"), "secret-id", SETTINGS)
    template = spec["task_template"]
    container = template["ContainerSpec"]
    assert spec["name"] == "minicluster-task-12" and spec["endpoint_spec"] == {"Mode": "dnsrr"}
    assert template["Placement"] == {"Constraints": ["node.id==n1"]}
    assert template["RestartPolicy"] == {"Condition": "none"}
    assert template["Networks"] == [{"Target": network_spec(4)["name"]}]
    assert container["CapabilityDrop"] == ["ALL"] and container["Privileges"] == {"NoNewPrivileges": True}
    assert container["User"] == "1000"
    shm = container["Mounts"][0]
    assert shm["Target"] == "/dev/shm" and shm["TmpfsOptions"]["SizeBytes"] == 2 * 1024**3


def test_labels_name_owner_job_attempt_and_task_at_the_service_and_its_container() -> None:
    spec = service_spec(LAUNCH, NODE, ("gpu", "gpu"), "secret-id", SETTINGS)
    wanted = {"owner": "ada@lab.org", "job": "7", "attempt": "9", "gang": "4", "task": "12", "role": "task"}
    assert (
        wanted.items()
        <= {key.removeprefix("org.minicluster."): v for key, v in spec["labels"].items()}.items()
    )
    assert spec["task_template"]["ContainerSpec"]["Labels"] == spec["labels"]


def test_the_token_is_in_the_secret_and_nowhere_else() -> None:
    spec = service_spec(LAUNCH, NODE, ("gpu", "gpu"), "secret-id", SETTINGS)
    assert "the-token" not in repr(spec)
    assert secret_spec(LAUNCH)["data"] == b"the-token"
    given_file = spec["task_template"]["ContainerSpec"]["Secrets"][0]
    assert given_file["File"] == {"Name": "task-token", "UID": "1000", "GID": "1000", "Mode": 0o400}


def test_gpu_slots_are_asked_of_swarm_and_others_see_no_gpu() -> None:
    with_gpus = service_spec(LAUNCH, NODE, ("gpu", "gpu", "gpu"), "s", SETTINGS)["task_template"]
    assert with_gpus["Resources"]["Reservations"]["GenericResources"] == [
        {"DiscreteResourceSpec": {"Kind": "GPU", "Value": 2}}
    ]
    assert "MINICLUSTER_GPUS=2" in with_gpus["ContainerSpec"]["Env"]
    assert "MINICLUSTER_NODE_SLOTS=3" in with_gpus["ContainerSpec"]["Env"]
    without = service_spec(LAUNCH, NODE, ("cpu", "cpu"), "s", SETTINGS)["task_template"]
    assert "Reservations" not in without["Resources"]
    assert "NVIDIA_VISIBLE_DEVICES=void" in without["ContainerSpec"]["Env"]


def test_a_launch_chooses_its_image_and_its_shared_memory() -> None:
    launch = dataclasses.replace(LAUNCH, image="other@sha256:1", shm_bytes=2**20)
    container = service_spec(launch, NODE, ("cpu", "cpu"), "s", SETTINGS)["task_template"]["ContainerSpec"]
    assert container["Image"] == "other@sha256:1"
    assert container["Mounts"][0]["TmpfsOptions"]["SizeBytes"] == 2**20


def test_on_the_host_network_a_task_is_reached_at_its_nodes_address() -> None:
    settings = dataclasses.replace(SETTINGS, host_network=True)
    template = service_spec(LAUNCH, NODE, ("cpu", "cpu"), "s", settings)["task_template"]
    assert template["Networks"] == [{"Target": "host"}]
    assert "MINICLUSTER_ADDRESS=10.0.0.2" in template["ContainerSpec"]["Env"]
    assert "Hostname" not in template["ContainerSpec"]


def test_a_replica_of_a_model_is_where_the_job_services_reach_it() -> None:
    launch = dataclasses.replace(LAUNCH, serves=True)
    template = service_spec(launch, NODE, ("cpu", "cpu"), "s", SETTINGS)["task_template"]
    assert template["Networks"] == [{"Target": "minicluster-serves"}]
    engine = SwarmEngine(docker_url="tcp://127.0.0.1:9")
    assert engine.task_address(12, "pc-1") == template["ContainerSpec"]["Hostname"]


@pytest.mark.parametrize(
    "state", ["new", "pending", "assigned", "accepted", "preparing", "ready", "starting"]
)
def test_starting_is_not_dead(state: str) -> None:
    task = tasks_of([raw_task(state)], "task")[task_name(12)]
    assert task.alive and task.starting and not task.running


@pytest.mark.parametrize("state", ["complete", "failed", "rejected", "shutdown", "orphaned", "remove"])
def test_what_has_ended_is_not_alive(state: str) -> None:
    assert not tasks_of([raw_task(state)], "task")[task_name(12)].alive


@pytest.mark.parametrize("desired", ["shutdown", "remove"])
def test_what_the_swarm_gave_up_before_it_ran_is_not_starting_any_more(desired: str) -> None:
    task = tasks_of([raw_task("preparing", desired=desired)], "task")[task_name(12)]
    assert task.abandoned and not task.starting and not task.alive
    assert exit_reason(task) == "its node was lost while it started"


def test_of_two_tasks_of_a_service_the_living_one_counts() -> None:
    old, new = raw_task("running", "2026-01-01"), raw_task("failed", "2026-01-02")
    assert tasks_of([new, old], "task")[task_name(12)].running
    later = raw_task("running", "2026-01-03")
    assert tasks_of([later, new], "task")[task_name(12)].running


def test_an_exit_code_is_told_only_of_what_has_exited() -> None:
    container = {"ContainerStatus": {"ExitCode": 0, "ContainerID": "c"}}
    assert tasks_of([raw_task("running", **container)], "task")[task_name(12)].exit_code is None
    assert tasks_of([raw_task("complete", **container)], "task")[task_name(12)].exit_code == 0


def test_nodes_that_share_a_hostname_stay_two() -> None:
    nodes = nodes_of([raw_node("aaaaaaaaa", "pc"), raw_node("bbbbbbbbb", "pc"), raw_node("c", "other")])
    assert [node.name for node in nodes] == ["other", "pc-aaaaaa", "pc-bbbbbb"]


def test_a_manager_that_says_0000_of_itself_is_known_by_its_manager_address() -> None:
    raw = raw_node("n", "pc", status={"Addr": "0.0.0.0"}, ManagerStatus={"Addr": "10.0.0.1:2377"})
    assert nodes_of([raw])[0].address == "10.0.0.1"


@pytest.mark.parametrize(
    ("state", "availability", "usable"),
    [
        ("ready", "active", True),
        ("ready", "drain", False),
        ("ready", "pause", False),
        ("down", "active", False),
    ],
)
def test_a_drained_node_is_not_usable(state: str, availability: str, usable: bool) -> None:
    raw = raw_node("n", "pc", status={"State": state}, spec={"Availability": availability})
    assert nodes_of([raw])[0].usable is usable


def test_slots_are_the_gpus_and_where_there_is_none_in_the_cluster_one_cpu_share() -> None:
    named = [{"NamedResourceSpec": {"Kind": "GPU", "Value": f"GPU-{n}"}} for n in "ab"]
    counted = [
        {"DiscreteResourceSpec": {"Kind": "GPU", "Value": 3}},
        {"DiscreteResourceSpec": {"Kind": "X", "Value": 9}},
    ]
    gpu_cluster = nodes_of(
        [raw_node("1", "a", gpus=named), raw_node("2", "b", gpus=counted), raw_node("3", "c")]
    )
    assert slot_kinds(gpu_cluster) == {"a": ("gpu",) * 2, "b": ("gpu",) * 3, "c": ()}
    assert gpu_cluster[0].gpus == ("GPU-a", "GPU-b")
    assert slot_kinds(nodes_of([raw_node("1", "a"), raw_node("2", "b")])) == {"a": ("cpu",), "b": ("cpu",)}


def test_a_label_says_how_many_cpu_slots_a_node_has() -> None:
    node = raw_node("1", "a", spec={"Labels": {"org.minicluster.slots": "4"}})
    none = raw_node("2", "b", spec={"Labels": {"org.minicluster.slots": "0"}})
    assert slot_kinds(nodes_of([node, none])) == {"a": ("cpu",) * 4, "b": ()}


@pytest.mark.parametrize(
    ("docker_says", "meaning"),
    [
        ("No such image: x@sha256:1", messages.COULD_NOT_GET_IMAGE),
        ("no suitable node (insufficient resources on 1 node)", "no room"),
        ("write /var/lib/docker: no space left on device", "disk is full"),
    ],
)
def test_docker_s_reasons_are_put_in_words_and_kept(docker_says: str, meaning: str) -> None:
    reason = exit_reason(tasks_of([raw_task("rejected", error=docker_says)], "task")[task_name(12)])
    assert meaning in reason and docker_says in reason and "doctor" in reason


def test_a_log_loses_its_frames_and_its_control_characters() -> None:
    frames = b"\x01\0\0\0\0\0\0\x03one" + b"\x02\0\0\0\0\0\0\x05\ntwo\n"
    assert _without_frame_headers(frames) == b"one\ntwo\n"
    assert _without_frame_headers(b"plain text") == b"plain text"
    assert readable("a\x1b[31mb\x00\n") == "a[31mb"


def test_the_filter_names_the_cluster_and_the_role() -> None:
    assert label_filter("task") == {
        "label": ["org.minicluster.cluster=minicluster", "org.minicluster.role=task"]
    }


@given(st.text(min_size=1, max_size=200), st.text(min_size=1, max_size=200))
def test_any_name_becomes_one_that_docker_takes_and_stays_apart(first: str, second: str) -> None:
    name = safe(first)
    assert len(name) <= 40 and name.isascii() and name[0].isalnum() and name[-1].isalnum()
    assert name == name.lower() and not set(name) - set("abcdefghijklmnopqrstuvwxyz0123456789-")
    assert (safe(second) == name) == (first == second)


def test_a_node_counts_once_its_relay_runs_and_without_relays_at_once() -> None:
    def relay(node_id: str, state: str) -> dict[str, Any]:
        spec = {"ContainerSpec": {"Labels": labels("relay", name="minicluster_relay")}}
        return {"ID": node_id, "NodeID": node_id, "Spec": spec, "Status": {"State": state}}

    assert relayed([raw_task("running")]) is None
    assert relayed([relay("a", "running"), relay("b", "preparing")]) == {"a"}
    assert tasks_of([relay("a", "running"), raw_task("running")], "task").keys() == {task_name(12)}


def test_no_user_gets_anothers_home_by_taking_the_name_that_was_made_for_it() -> None:
    made = safe("Ada")
    assert made.startswith("ada-x") and safe(made) != made
    assert safe("xray") == "xray" and safe("x1") == "x1"


def test_a_service_s_name_is_never_longer_than_swarm_takes() -> None:
    longest = server_name("a" * 40, "b" * 30)
    assert len(longest) <= 63 and longest != server_name("a" * 40, "b" * 29 + "c")


def test_two_users_servers_never_share_a_name() -> None:
    assert server_name("a", "b") != server_name("a--b", "")
    assert server_name("ada", "") == "minicluster-server-ada"


def test_a_lighthouse_is_a_small_service_on_a_manager_and_the_gangs_network():
    spec = lighthouse_spec(4, NODE, SETTINGS)
    template = spec["task_template"]
    assert template["Networks"] == [{"Target": network_spec(4)["name"]}]
    assert template["Placement"] == {"Constraints": ["node.role==manager"]}
    assert template["RestartPolicy"]["Condition"] == "any"
    container = template["ContainerSpec"]
    assert (container["User"], container["CapabilityDrop"], container["ReadOnly"]) == ("1000", ["ALL"], True)
    assert container["Privileges"] == {"NoNewPrivileges": True}
    assert template["Resources"]["Limits"].keys() == {"MemoryBytes", "NanoCPUs", "Pids"}
    assert "Reservations" not in template["Resources"], "no manager is too full for it"
    assert spec["labels"][ADDRESS_LABEL] == f"{spec['name']}:29510"
    assert spec["labels"] == template["ContainerSpec"]["Labels"]


def test_on_the_nodes_own_network_each_lighthouse_has_its_own_port_and_stays():
    settings = dataclasses.replace(SETTINGS, host_network=True)
    one, other = (lighthouse_spec(gang, NODE, settings) for gang in (4, 5))
    assert one["labels"][ADDRESS_LABEL] == f"{NODE.address}:29514"
    assert other["labels"][ADDRESS_LABEL] == f"{NODE.address}:29515"
    assert one["task_template"]["Placement"] == {"Constraints": [f"node.id=={NODE.id}"]}
