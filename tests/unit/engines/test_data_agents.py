"""Data set agents: each node's token is valid for that node only; the Swarm service as data."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minicluster_hub.engines.node_tokens import NodeTokens
from minicluster_hub.engines.swarm.data_agents import data_agent_spec
from minicluster_hub.engines.swarm.spec import TaskSettings

from .swarm_nodes import node

URL = "https://10.0.0.1:8083/services/minicluster/"
SETTINGS = TaskSettings(image="127.0.0.1:5100/notebook@sha256:" + "a" * 64, service_ca="-----BEGIN")
TOKENS = NodeTokens("the job service's secret")
names = st.lists(st.from_regex(r"[a-z0-9][a-z0-9.-]{0,20}", fullmatch=True), min_size=1, max_size=3)


@given(names)
def test_a_token_speaks_for_its_nodes_and_no_others(nodes):
    token = TOKENS.issue(nodes)
    assert TOKENS.nodes(token) == set(nodes)
    assert not NodeTokens("another secret").nodes(token)
    code = token.rpartition(":")[2]
    for forged in (f"other:{code}", f"{','.join(nodes)},other:{code}", f":{code}", code, token[:-1], ""):
        assert not TOKENS.nodes(forged)


@given(st.text())
def test_no_text_is_a_token(text):
    assert not TOKENS.nodes(text)


def spec(number: int = 1, tokens: NodeTokens = TOKENS, settings: TaskSettings = SETTINGS):
    there = node(number)
    return data_agent_spec(there, (URL,), tokens.file([there.name]), settings)


def test_the_service_is_pinned_and_held_tight():
    made = spec()
    inside = made["task_template"]["ContainerSpec"]
    assert made["task_template"]["Placement"] == {"Constraints": ["node.id==id1"]}
    assert inside["CapabilityDrop"] == ["ALL"] and inside["Privileges"]["NoNewPrivileges"]
    assert inside["User"] == "1000:1000"
    assert [mount["Source"] for mount in inside["Mounts"]] == ["minicluster_keeper"]
    assert "MINICLUSTER_KEEPER_NODES=node1" in inside["Env"]
    assert "MINICLUSTER_SERVICE_CA=-----BEGIN" in inside["Env"]


def test_its_token_is_a_file_and_nowhere_else():
    file = TOKENS.file(["node1"])
    assert all(part not in json.dumps(spec()) for part in file.split())
    (secret,) = spec()["task_template"]["ContainerSpec"]["Secrets"]
    assert (secret["File"]["Mode"], secret["File"]["UID"]) == (0o400, "1000")


def test_a_change_of_anything_is_noticed():
    label = "org.minicluster.spec"
    before = spec()["labels"][label]
    assert spec()["labels"][label] == before
    other = TaskSettings(image="other", service_ca="-----BEGIN")
    for changed in (spec(2), spec(tokens=NodeTokens("a new secret")), spec(settings=other)):
        assert changed["labels"][label] != before


@pytest.mark.parametrize("watched", [False, True])
def test_it_sees_gpus_where_their_use_is_to_be_measured_and_no_cuda(watched):
    made = spec(settings=TaskSettings(image="image", watch_gpus=watched))
    env = dict(pair.split("=", 1) for pair in made["task_template"]["ContainerSpec"]["Env"])
    assert env["NVIDIA_VISIBLE_DEVICES"] == ("all" if watched else "void")
    assert env.get("NVIDIA_DRIVER_CAPABILITIES") == ("utility" if watched else None)
