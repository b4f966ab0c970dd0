"""Whether a service is up, from Docker's lists; its messages reach the administrator."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from minicluster_hub.cluster.commands import status
from minicluster_hub.cluster.commands.service_progress import (
    ServiceProgress,
    progress_of,
    stuck_message,
)
from minicluster_hub.cluster.plan.choices import Choices
from minicluster_hub.cluster.plan.record import ClusterRecord
from minicluster_hub.engines.swarm.names import SPEC_LABEL
from minicluster_hub.engines.swarm.view import SwarmNode


def node(name: str, up: bool = True) -> SwarmNode:
    return SwarmNode(name, name, "10.0.0.1", up, name == "a", "active", (), {}, "26.1.5", 2**30, 2.0)


NODES = (node("a"), node("b"), node("c", up=False))


def spec(role: str = "hub", *, everywhere: bool = False, once: bool = False) -> dict[str, Any]:
    return {
        "name": f"minicluster_{role}",
        "labels": {SPEC_LABEL: "new"},
        "mode": {"Global": {}} if everywhere else {"Replicated": {"Replicas": 1}},
        "task_template": {"RestartPolicy": {"Condition": "on-failure" if once else "any"}, "Placement": {}},
    }


def task(state: str, on: str = "a", digest: str = "new", role: str = "hub", **more: Any) -> dict[str, Any]:
    labels = {"org.minicluster.name": f"minicluster_{role}", SPEC_LABEL: digest}
    ended = state in ("failed", "rejected", "shutdown", "complete")
    return {
        "NodeID": on,
        "DesiredState": "shutdown" if ended else "running",
        "Spec": {"ContainerSpec": {"Labels": labels}},
        "Status": {"State": state, **more},
    }


def test_only_tasks_of_exactly_this_specification_count() -> None:
    assert progress_of(spec(), [task("running", digest="old")], NODES).done == 0
    assert progress_of(spec(), [task("running", role="proxy")], NODES).done == 0
    assert progress_of(spec(), [task("running")], NODES).reached == {"a"}


def test_a_task_that_is_to_end_does_not_count() -> None:
    ending = task("running") | {"DesiredState": "shutdown"}
    assert progress_of(spec(), [ending], NODES).done == 0


def test_nodes_that_are_down_are_not_waited_for() -> None:
    now = progress_of(spec("relay", everywhere=True), [task("running", role="relay")], NODES)
    assert (now.done, now.total) == (1, 2)


def test_an_image_is_there_once_its_task_is_complete() -> None:
    asked = spec("images", everywhere=True, once=True)
    tasks = [task("complete", "a", role="images"), task("preparing", "b", role="images")]
    now = progress_of(asked, tasks, NODES)
    assert (now.reached, now.total, now.pulling) == ({"a"}, 2, True)


def test_the_newest_trouble_is_told_until_its_node_is_reached() -> None:
    tasks = [
        task("rejected", Err="No such image: x", Timestamp="2026-01-01T00:00:02"),
        task("failed", Err="older", Timestamp="2026-01-01T00:00:01"),
    ]
    now = progress_of(spec(), tasks, NODES)
    assert (now.trouble, now.failures) == ("No such image: x", 2)
    assert progress_of(spec(), [*tasks, task("running")], NODES).trouble == ""


def test_what_is_told_of_a_stuck_service_names_it_its_trouble_a_remedy_and_the_next_step() -> None:
    now = progress_of(spec(), [task("rejected", Err="No such image: x")], NODES)
    text = stuck_message(spec(), now, 12.0, "last line")
    for part in (
        "minicluster_hub",
        "No such image: x",
        "The registry does not have the image",
        "last line",
        "doctor",
        "`up`",
    ):
        assert part in text


def test_of_managers_only_managers_are_waited_for() -> None:
    asked = spec("service", everywhere=True)
    asked["task_template"]["Placement"] = {"Constraints": ["node.role==manager"]}
    assert progress_of(asked, [task("running", role="service")], NODES).total == 1
    asked["task_template"]["Placement"] = {"Constraints": ["node.id==b"]}
    assert progress_of(asked, [], NODES).total == 1


def test_the_status_tells_the_address_where_the_proxy_is() -> None:
    progress = {
        "proxy": ServiceProgress(frozenset("b"), 1),
        "hub": ServiceProgress(frozenset("a"), 1),
    }
    nodes = [replace(node("a"), address="10.0.0.1"), replace(node("b"), address="10.0.0.2")]
    known = ClusterRecord(Choices(shared_data="/mnt/lab"), "a")
    lines = status.report(known, nodes, progress, {})
    assert lines[0].split() == ["URL", "https://10.0.0.2"]
    assert [line.split() for line in lines if line.startswith(("proxy", "hub "))] == [
        ["proxy", "1", "of", "1", "on", "b"],
        ["hub", "1", "of", "1", "on", "a"],
        ["hub", "image"],
    ]
    alone = status.report(ClusterRecord(Choices(), "a"), nodes, progress, {})
    assert alone[0].split() == ["URL", "https://10.0.0.1"]


def test_the_end_of_a_task_is_no_trouble_any_more_when_the_service_runs_on_another_node() -> None:
    tasks = [task("failed", "a", Err="task: non-zero exit (255)"), task("running", "b")]
    assert progress_of(spec(), tasks, NODES).trouble == ""
    assert progress_of(spec(), tasks[:1], NODES).trouble == "task: non-zero exit (255)"
    assert progress_of(spec(everywhere=True), tasks, NODES).trouble == "task: non-zero exit (255)"
