"""The engine `kubernetes` without a cluster: pods, Secrets, walls and claims as data."""

from __future__ import annotations

import base64
import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from minicluster_hub.engines.base import TaskLaunch
from minicluster_hub.engines.kubernetes.data_agents import DataVolumes, claim_spec, data_agent_plan
from minicluster_hub.engines.kubernetes.lighthouses import lighthouse_spec, service_spec
from minicluster_hub.engines.kubernetes.names import Names
from minicluster_hub.engines.kubernetes.pods import PodSettings, toleration
from minicluster_hub.engines.kubernetes.spec import (
    TaskSettings,
    network_policy_spec,
    resources,
    secret_spec,
    task_memory_bytes,
    task_spec,
)
from minicluster_hub.engines.kubernetes.view import KubernetesNode
from minicluster_hub.engines.node_tokens import NodeTokens

NAMES = Names()
IMAGE = "registry.lab/notebook@sha256:" + "a" * 64
SETTINGS = TaskSettings(pods=PodSettings(names=NAMES, image=IMAGE))
GB = 1024**3
NODE = KubernetesNode(
    name="pc-1.lab.org",
    address="10.0.0.1",
    ready=True,
    closed="",
    gpus=2,
    cpus=8.0,
    memory_bytes=16 * GB,
    labels={},
)
LAUNCH = TaskLaunch(
    task_id=12,
    gang_id=4,
    owner="ada@lab.org",
    node="pc-1.lab.org",
    slots=(0, 1),
    token="the-token",
    service_urls=("https://minicluster.hub:8443/services/minicluster/",),
    job_id=7,
    attempt_id=9,
)
GPUS = ("gpu", "gpu")


def pod_of(launch: TaskLaunch = LAUNCH, kinds: tuple[str, ...] = GPUS, **changes: Any) -> dict[str, Any]:
    return task_spec(launch, NODE, kinds, dataclasses.replace(SETTINGS, **changes))


def main_of(pod: dict[str, Any]) -> dict[str, Any]:
    (container,) = pod["spec"]["containers"]
    return container


def variables(pod: dict[str, Any]) -> dict[str, Any]:
    return {one["name"]: one.get("value", one.get("valueFrom")) for one in main_of(pod)["env"]}


def restricted(pod: dict[str, Any]) -> list[str]:
    """Return what a pod does that the Pod Security Standard `restricted` forbids."""
    spec, container = pod["spec"], main_of(pod)
    rights, allowed = container["securityContext"], ("secret", "emptyDir", "persistentVolumeClaim")
    wrong = {
        "runs as root": not spec["securityContext"]["runAsNonRoot"]
        or not spec["securityContext"]["runAsUser"],
        "has no seccomp profile": spec["securityContext"]["seccompProfile"] != {"type": "RuntimeDefault"},
        "may get more rights": rights["allowPrivilegeEscalation"] is not False,
        "has capabilities": rights["capabilities"] != {"drop": ["ALL"]},
        "is privileged": bool(rights.get("privileged")),
        "uses its node's namespaces": any(spec.get(f"host{what}") for what in ("Network", "PID", "IPC")),
        "has other volumes": any(not set(allowed) & set(volume) for volume in spec["volumes"]),
    }
    return [what for what, is_so in wrong.items() if is_so]


def all_pods() -> dict[str, dict[str, Any]]:
    agent = data_agent_plan(["pc-1"], LAUNCH.service_urls, "token", SETTINGS, DataVolumes(storage_class="x"))
    return {
        "task": pod_of(data_cache=True),
        "lighthouse": lighthouse_spec(4, NAMES, SETTINGS.pods),
        "data agent": agent.pod,
    }


@pytest.mark.parametrize("kind", ["task", "lighthouse", "data agent"])
def test_a_pod_has_no_rights(kind: str) -> None:
    pod = all_pods()[kind]
    assert not restricted(pod)
    assert pod["spec"]["automountServiceAccountToken"] is False
    assert pod["spec"]["enableServiceLinks"] is False


def test_a_task_is_bound_to_its_node_through_the_scheduler() -> None:
    spec = pod_of()["spec"]
    terms = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    field = {"key": "metadata.name", "operator": "In", "values": ["pc-1.lab.org"]}
    assert terms == {"nodeSelectorTerms": [{"matchFields": [field]}]}
    assert "nodeName" not in spec
    assert spec["restartPolicy"] == "Never"


def test_labels_name_job_attempt_gang_and_task_and_marks_the_whole_owner() -> None:
    metadata = pod_of()["metadata"]
    wanted = {"role": "task", "job": "7", "attempt": "9", "gang": "4", "task": "12", "cluster": "minicluster"}
    found = {key.removeprefix("minicluster.org/"): value for key, value in metadata["labels"].items()}
    assert wanted.items() <= found.items()
    assert metadata["annotations"]["minicluster.org/owner-name"] == "ada@lab.org"
    assert metadata["annotations"]["minicluster.org/slots"] == "0,1"
    for value in metadata["labels"].values():
        assert re.fullmatch(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?", value), value


def test_the_token_is_in_the_gangs_secret_and_nowhere_else() -> None:
    secret = secret_spec(LAUNCH, NAMES)
    assert base64.b64decode(secret["data"]["task-12"]) == b"the-token"
    pod = pod_of()
    assert "the-token" not in json.dumps(pod)
    (volume,) = (one for one in pod["spec"]["volumes"] if "secret" in one)
    assert volume["secret"]["secretName"] == secret["metadata"]["name"] == "minicluster-gang-4"
    # Its own key, and not those of the gang's other tasks.
    assert volume["secret"]["items"] == [{"key": "task-12", "path": "token", "mode": 0o440}]
    assert variables(pod)["MINICLUSTER_TOKEN_FILE"] == "/run/minicluster/token"


def test_a_pod_tells_which_start_made_it_but_not_the_token() -> None:
    marks = [pod_of(dataclasses.replace(LAUNCH, token=token))["metadata"]["annotations"] for token in "ab"]
    assert marks[0]["minicluster.org/spec"] != marks[1]["minicluster.org/spec"]
    assert len(marks[0]["minicluster.org/spec"]) == 16


def test_tasks_of_a_gang_apply_keys_of_one_secret() -> None:
    other = secret_spec(dataclasses.replace(LAUNCH, task_id=13), NAMES)
    mine = secret_spec(LAUNCH, NAMES)
    assert other["metadata"] == mine["metadata"]
    assert other["data"].keys().isdisjoint(mine["data"])


def test_gpu_slots_are_asked_of_the_device_plugin_and_others_see_no_gpu() -> None:
    pod = pod_of(kinds=("gpu", "gpu", "gpu"))
    wanted = main_of(pod)["resources"]
    assert wanted["limits"]["nvidia.com/gpu"] == wanted["requests"]["nvidia.com/gpu"] == "2"
    assert variables(pod)["MINICLUSTER_GPUS"] == "2"
    assert variables(pod)["MINICLUSTER_NODE_SLOTS"] == "3"
    assert variables(pod)["MINICLUSTER_VERIFY_GPUS"] == "count"
    without = pod_of(kinds=("cpu", "cpu"))
    assert "nvidia.com/gpu" not in main_of(without)["resources"]["limits"]
    assert variables(without)["NVIDIA_VISIBLE_DEVICES"] == "void"
    other = pod_of(gpu_resource="amd.com/gpu")
    assert main_of(other)["resources"]["limits"]["amd.com/gpu"] == "2"


def test_a_runtime_class_is_for_pods_with_gpus() -> None:
    pods = dataclasses.replace(SETTINGS.pods, runtime_class="nvidia")
    assert pod_of(pods=pods)["spec"]["runtimeClassName"] == "nvidia"
    assert "runtimeClassName" not in pod_of(pods=pods, kinds=("cpu", "cpu"))["spec"]


def test_a_task_is_reached_at_its_pods_address() -> None:
    assert variables(pod_of())["MINICLUSTER_ADDRESS"] == {"fieldRef": {"fieldPath": "status.podIP"}}


def test_shared_memory_is_at_most_half_of_the_tasks_memory() -> None:
    volumes = {one["name"]: one for one in pod_of()["spec"]["volumes"]}
    assert volumes["shm"]["emptyDir"] == {"medium": "Memory", "sizeLimit": str(2 * GB)}
    small = pod_of(memory_per_slot_bytes=GB)["spec"]["volumes"]
    assert next(one for one in small if one["name"] == "shm")["emptyDir"]["sizeLimit"] == str(GB)


@pytest.mark.parametrize(
    ("slots", "per_slot_bytes", "expected_bytes"),
    [((0,), 0, 7 * GB), ((0, 1), 0, 14 * GB), ((0,), 3 * GB, 3 * GB), ((0, 1), 20 * GB, 14 * GB)],
)
def test_memory_is_shared_by_slots(slots: tuple[int, ...], per_slot_bytes: int, expected_bytes: int) -> None:
    settings = dataclasses.replace(SETTINGS, memory_per_slot_bytes=per_slot_bytes)
    launch = dataclasses.replace(LAUNCH, slots=slots)
    assert task_memory_bytes(launch, NODE, GPUS, settings) == expected_bytes


def test_a_task_requests_little_of_its_limits_unless_told() -> None:
    little = resources(8 * GB, 0, NODE, SETTINGS)
    assert little["limits"] == {"memory": str(8 * GB), "cpu": "7500m"}
    assert little["requests"] == {"memory": str(128 << 20), "cpu": "100m"}
    all_of_it = resources(8 * GB, 0, NODE, dataclasses.replace(SETTINGS, request_share=1.0))
    assert all_of_it["requests"] == all_of_it["limits"]


def test_a_node_that_tells_nothing_sets_no_limit_of_memory() -> None:
    silent = dataclasses.replace(NODE, cpus=0.0, memory_bytes=0)
    assert resources(0, 0, silent, SETTINGS)["limits"] == {}


def test_a_gang_has_walls() -> None:
    policy = network_policy_spec(4, SETTINGS)["spec"]
    own = {"podSelector": {"matchLabels": NAMES.gang_labels(4)}}
    assert policy["podSelector"] == own["podSelector"]
    assert policy["ingress"] == [{"from": [own]}], "only the gang reaches its pods"
    assert set(policy["policyTypes"]) == {"Ingress", "Egress"}
    blocks = [one["ipBlock"] for rule in policy["egress"] for one in rule["to"] if "ipBlock" in one]
    assert {"cidr": "0.0.0.0/0", "except": ["169.254.169.254/32"]} in blocks


def test_the_job_service_reaches_a_gang_that_answers_requests_to_a_model() -> None:
    (rule,) = network_policy_spec(4, SETTINGS, serves=True)["spec"]["ingress"]
    labels = [one["podSelector"]["matchLabels"] for one in rule["from"]]
    assert {"app.kubernetes.io/name": "minicluster", "app.kubernetes.io/component": "service"} in labels


def test_networks_of_both_kinds_are_blocked() -> None:
    settings = dataclasses.replace(SETTINGS, blocked_networks=("10.0.0.0/8", "fd00::/8"))
    rules = network_policy_spec(4, settings)["spec"]["egress"]
    blocks = [one["ipBlock"] for rule in rules for one in rule["to"] if "ipBlock" in one]
    assert {"cidr": "0.0.0.0/0", "except": ["10.0.0.0/8"]} in blocks
    assert {"cidr": "::/0", "except": ["fd00::/8"]} in blocks


def test_task_and_lighthouse_of_a_gang_are_within_its_walls() -> None:
    chosen = NAMES.gang_labels(4).items()
    assert chosen <= pod_of()["metadata"]["labels"].items()
    assert chosen <= lighthouse_spec(4, NAMES, SETTINGS.pods)["metadata"]["labels"].items()
    other = dataclasses.replace(LAUNCH, gang_id=5)
    assert not chosen <= pod_of(other)["metadata"]["labels"].items()


def test_a_lighthouse_is_found_by_its_service() -> None:
    service, pod = service_spec(4, NAMES), lighthouse_spec(4, NAMES, SETTINGS.pods)
    assert service["spec"]["selector"].items() <= pod["metadata"]["labels"].items()


def test_a_task_reads_its_nodes_cache_of_data_sets() -> None:
    assert not any("persistentVolumeClaim" in one for one in pod_of()["spec"]["volumes"])
    (claim,) = (one for one in pod_of(data_cache=True)["spec"]["volumes"] if one["name"] == "data")
    name = NAMES.data_agent("pc-1.lab.org")
    assert claim["persistentVolumeClaim"] == {"claimName": name, "readOnly": True}
    shared = pod_of(data_cache=True, data_claim="data-sets")["spec"]["volumes"]
    assert any(one.get("persistentVolumeClaim", {}).get("claimName") == "data-sets" for one in shared)


def test_a_nodes_agent_has_a_claim_and_a_token_of_its_own() -> None:
    tokens = NodeTokens("secret")
    volumes = DataVolumes(storage_class="local-path", size="20Gi")
    plans = [
        data_agent_plan([name], LAUNCH.service_urls, tokens.file([name]), SETTINGS, volumes)
        for name in ("pc-1", "pc-2")
    ]
    assert len({plan.name for plan in plans}) == 2
    assert plans[0].secret["data"] != plans[1].secret["data"]
    assert plans[0].claim == claim_spec(plans[0].name, NAMES, volumes)
    assert plans[0].claim["spec"]["storageClassName"] == "local-path"
    assert variables(plans[0].pod)["MINICLUSTER_KEEPER_NODES"] == "pc-1"
    assert "secret" not in json.dumps(plans[0].pod["metadata"])


def test_one_agent_fills_a_cache_that_all_nodes_share() -> None:
    volumes = DataVolumes(claim="data-sets")
    plan = data_agent_plan(["pc-1", "pc-2"], LAUNCH.service_urls, "token", SETTINGS, volumes)
    assert plan.claim is None
    assert "affinity" not in plan.pod["spec"]
    assert variables(plan.pod)["MINICLUSTER_KEEPER_NODES"] == "pc-1,pc-2"


def test_an_agent_is_made_anew_when_its_token_or_its_image_changes() -> None:
    def mark(token: str, settings: TaskSettings) -> str:
        plan = data_agent_plan(["pc-1"], LAUNCH.service_urls, token, settings, DataVolumes(storage_class="x"))
        return plan.pod["metadata"]["annotations"]["minicluster.org/spec"]

    pods = dataclasses.replace(SETTINGS.pods, image="another")
    assert mark("one", SETTINGS) == mark("one", SETTINGS)
    marks = (
        mark("one", SETTINGS),
        mark("two", SETTINGS),
        mark("one", dataclasses.replace(SETTINGS, pods=pods)),
    )
    assert len(set(marks)) == 3


def test_names_are_short_enough_for_kubernetes() -> None:
    longest = max(NAMES.data_agent("n" * 250), NAMES.task(10**9), NAMES.lighthouse(10**9), key=len)
    assert len(longest) <= 63


def test_the_chart_gives_the_rights_to_all_kinds_that_the_engine_makes(tree: Path) -> None:
    text = (tree / "hub_ext/minicluster_hub/engines/kubernetes/chart/templates/rbac.yaml").read_text()
    text = re.sub(r"\n +labels:\n +\{\{- include .*", "", text)
    roles = [one for one in yaml.safe_load_all(re.sub(r"\{\{.*?\}\}", "x", text)) if one and "rules" in one]
    may = {
        (resource, verb)
        for role in roles
        for rule in role["rules"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    made = ("pods", "secrets", "services", "networkpolicies", "persistentvolumeclaims")
    assert {(kind, verb) for kind in made for verb in ("create", "delete")} <= may
    assert not {("secrets", "get"), ("secrets", "list"), ("secrets", "watch")} & may
    assert not any(verb == "*" or resource == "*" for resource, verb in may)


@pytest.mark.parametrize(
    ("taint", "tolerated"),
    [
        ("lab", {"key": "lab", "operator": "Exists"}),
        ("lab=jobs", {"key": "lab", "operator": "Equal", "value": "jobs"}),
        ("lab:NoExecute", {"key": "lab", "operator": "Exists", "effect": "NoExecute"}),
        (
            "lab=jobs:NoSchedule",
            {"key": "lab", "operator": "Equal", "value": "jobs", "effect": "NoSchedule"},
        ),
    ],
)
def test_taints_are_tolerated_as_they_are_written(taint: str, tolerated: dict[str, str]) -> None:
    assert toleration(taint) == tolerated
    pods = dataclasses.replace(SETTINGS.pods, tolerations=(toleration(taint),))
    assert pod_of(pods=pods)["spec"]["tolerations"] == [tolerated]
