"""The doctor: facts in, findings out."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from minicluster_hub.cluster.doctor.checks.gpu_copies import GpuCopies, GpuCopy
from minicluster_hub.cluster.doctor.checks.node import NodeState
from minicluster_hub.cluster.doctor.command import examine
from minicluster_hub.cluster.doctor.facts import ClusterFacts, ServiceFacts, SwarmFacts
from minicluster_hub.cluster.doctor.findings import Finding, as_json, as_table
from minicluster_hub.cluster.doctor.messages import NodeReport, OverlayReport, PeerLink, Target, TargetAnswer
from minicluster_hub.cluster.plan.choices import Choices
from minicluster_hub.cluster.plan.record import ClusterRecord

from ..engines.swarm_nodes import node

GB = 10**9


def link(peer: int, mbit: float = 940.0, **changes: object) -> PeerLink:
    made = PeerLink(
        peer=f"id{peer}",
        interface="eth0",
        speed_mbit=1000,
        sent_mbit=mbit,
        received_mbit=mbit + 1,
        clock_ahead_s=0.01,
    )
    return made.model_copy(update=changes)


def report(
    number: int, *links: PeerLink, answers: tuple[TargetAnswer, ...] = (), **changes: Any
) -> NodeReport:
    """Return the findings. changes: to the node's state."""
    state = {"disk_free_bytes": 100 * GB, "disk_total_bytes": 500 * GB, "shm_bytes": 1 << 30, **changes}
    return NodeReport(node_id=f"id{number}", links=links, answers=answers, state=NodeState(**state))


def healthy() -> ClusterFacts:
    reports = [report(1, link(2)), report(2, link(3), link(1)), report(3, link(1), link(2))]
    return ClusterFacts(
        swarm=SwarmFacts("active", True, engine_version="26.1.5", leader_id="id1"),
        nodes=(node(1), node(2), node(3)),
        services=tuple(ServiceFacts(role, 1, 1) for role in ("hub", "proxy", "service", "registry")),
        reports={one.node_id: one for one in reports},
        overlay={
            f"id{one}": OverlayReport(
                node_id=f"id{one}", reached=tuple(f"id{other}" for other in (1, 2, 3) if other != one)
            )
            for one in (1, 2, 3)
        },
        overlay_tried=True,
    )


def away(what: str, target: str, words: str) -> TargetAnswer:
    return TargetAnswer(target=Target(what=what, target=target), ok=False, words=words)


def with_report(facts: ClusterFacts, changed: NodeReport) -> ClusterFacts:
    return replace(facts, reports={**facts.reports, changed.node_id: changed})


def troubles(facts: ClusterFacts) -> list[Finding]:
    found = [finding for finding in examine(facts) if finding.level != "ok"]
    assert all(finding.remedy for finding in found), "a trouble without a remedy"
    return found


def only(facts: ClusterFacts) -> Finding:
    [finding] = troubles(facts)
    return finding


def test_a_healthy_cluster_has_no_troubles() -> None:
    assert troubles(healthy()) == []


@pytest.mark.parametrize(
    ("swarm", "words"),
    [
        (SwarmFacts("inactive", False), "no Swarm"),
        (SwarmFacts("locked", False), "locked"),
        (SwarmFacts("active", False), "no manager"),
        (SwarmFacts("active", True, error="The swarm does not have a leader."), "no quorum"),
    ],
)
def test_without_a_working_swarm_one_finding_says_so(swarm: SwarmFacts, words: str) -> None:
    finding = only(ClusterFacts(swarm))
    assert (finding.level, finding.check) == ("FAILED", "swarm")
    assert words in finding.what


def test_managers_are_odd_and_reachable() -> None:
    facts = healthy()
    two = replace(facts, nodes=(node(1), node(2, manager=True), node(3)))
    assert "docker node demote node2" in only(two).remedy
    lost = replace(facts, swarm=replace(facts.swarm, unreachable_managers=("id2",)))
    assert (only(lost).node, only(lost).check) == ("node2", "managers")


def test_a_node_that_is_down_or_drained_is_named() -> None:
    facts = healthy()
    down = replace(facts, nodes=(node(1), node(2), node(3, up=False)))
    assert (
        only(down).level == "FAILED" and only(down).node == "node3" and "docker node rm" in only(down).remedy
    )
    drained = replace(facts, nodes=(node(1), node(2), node(3, availability="drain")))
    assert only(drained).level == "warning" and "docker node update" in only(drained).remedy


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("", "did not answer"),
        ("No such image: x@sha256:1", "hub image"),
        ("bind mount denied", "start a container"),
    ],
)
def test_a_silent_node_is_told_with_dockers_reason(reason: str, words: str) -> None:
    facts = replace(healthy(), silent={"id2": reason})
    assert only(facts).node == "node2" and words in only(facts).what and reason in only(facts).what


@pytest.mark.parametrize(
    ("version", "good"),
    [("23.0.1", False), ("20.10.24+dfsg1", False), ("", False), ("23.0.2", True), ("29.0.0", True)],
)
def test_engines_before_23_0_2_fail(version: str, good: bool) -> None:
    facts = replace(healthy(), nodes=(node(1), node(2, engine_version=version), node(3)))
    assert [finding.check for finding in troubles(facts)] == ([] if good else ["engine"])


def test_where_users_share_the_hubs_address_it_says_what_that_means() -> None:
    finding = only(replace(healthy(), record=ClusterRecord(Choices(), "id1")))
    assert finding.level == "warning" and "can act as any user who opens it" in finding.what
    assert "up --domain" in finding.remedy


def test_a_service_that_does_not_run_is_told_with_its_reason() -> None:
    facts = replace(healthy(), services=(ServiceFacts("hub", 1, 0, "task: non-zero exit (1)"),))
    assert "hub does not run: task: non-zero exit (1)" in only(facts).what
    relay = replace(healthy(), services=(ServiceFacts("relay", 3, 2),))
    assert "relay runs on 2 of 3 nodes" in only(relay).what
    assert "Run the command `up`" in only(replace(healthy(), services=())).remedy


def test_clocks_differ_by_half_a_second_at_most() -> None:
    behind = with_report(healthy(), report(3, link(1, clock_ahead_s=0.8), link(2)))
    assert "0.8 s behind node1's" in only(behind).what and "time server" in only(behind).remedy
    ahead = with_report(healthy(), report(3, link(1, clock_ahead_s=-12.3), link(2)))
    assert "12.3 s ahead of node1's" in only(ahead).what
    assert not troubles(with_report(healthy(), report(3, link(1, clock_ahead_s=-0.49))))


def test_a_fast_ethernet_link_is_called_by_its_name() -> None:
    finding = only(with_report(healthy(), report(2, link(3, 94, speed_mbit=100), link(1))))
    assert "94 Mbit/s" in finding.what and "eth0 (100 Mbit/s)" in finding.what
    assert "100 Mbit/s link" in finding.remedy
    hidden = only(with_report(healthy(), report(2, link(3, 93), link(1))))
    assert "100 Mbit/s link" in hidden.remedy, "the slow port is in the switch between"


def test_wifi_is_called_by_its_name_however_fast_it_is() -> None:
    radio = link(1, 620, interface="wlan0", wireless=True, speed_mbit=None)
    finding = only(with_report(healthy(), report(3, radio, link(2))))
    assert "wlan0 (Wi-Fi)" in finding.what and "Use a cable" in finding.remedy


def test_one_node_with_slow_links_to_all_is_the_trouble() -> None:
    facts = with_report(healthy(), report(1, link(2)))
    facts = with_report(facts, report(2, link(3, 190)))
    facts = with_report(facts, report(3, link(1, 185)))
    finding = only(facts)
    assert finding.node == "node3" and "all its links are slow: 185 Mbit/s" in finding.what


def test_slow_links_without_one_culprit_are_listed() -> None:
    facts = healthy()
    for number, peer in ((1, 2), (2, 3), (3, 1)):
        facts = with_report(facts, report(number, link(peer, 300)))
    assert [finding.node for finding in troubles(facts)] == ["node1", "node2", "node3"]


def test_a_fast_link_is_not_held_against_its_nominal_speed() -> None:
    assert not troubles(with_report(healthy(), report(1, link(2, 7000, speed_mbit=25000))))


def test_each_flow_is_shown_with_both_ways() -> None:
    facts = with_report(healthy(), report(1, link(2, sent_mbit=940.0, received_mbit=96.0)))
    slow = only(facts)
    assert slow.what.startswith("to node2: 0.94 Gbit/s there and 96 Mbit/s back")
    assert "100 Mbit/s link" in slow.remedy
    flows = [one for one in examine(healthy()) if one.check == "link"]
    assert [one.what for one in flows if one.node == "node2"] == [
        "single TCP flows, there and back: node3 0.94 Gbit/s, 0.94 Gbit/s, node1 0.94 Gbit/s, 0.94 Gbit/s"
    ]


def test_a_slow_way_back_points_at_duplex_and_cable() -> None:
    finding = only(with_report(healthy(), report(1, link(2, sent_mbit=930.0, received_mbit=40.0))))
    assert "differ in duplex" in finding.remedy and "ethtool eth0" in finding.remedy
    finding = only(with_report(healthy(), report(1, link(2, 300.0))))
    assert "another cable" in finding.remedy and "port of the switch" in finding.remedy
    half = only(with_report(healthy(), report(1, link(2, half_duplex=True))))
    assert "eth0 runs at half duplex" in half.what and "autoneg on" in half.remedy


def test_a_flow_is_slow_beside_the_others_unless_an_end_can_do_no_more() -> None:
    facts = healthy()
    for number, peer, mbit in ((1, 2, 9400.0), (2, 3, 9300.0), (3, 1, 941.0)):
        facts = with_report(facts, report(number, link(peer, mbit, speed_mbit=10_000)))
    assert only(facts).node == "node3" and "to node1: 0.94 Gbit/s there" in only(facts).what
    back = link(3, speed_mbit=1000, sent_mbit=None, received_mbit=None)
    gigabit = with_report(facts, report(1, link(2, 9400.0, speed_mbit=10_000), back))
    assert not troubles(gigabit), "node1's port to node3 is a gigabit one"


def test_the_interface_that_gloo_and_nccl_take_is_that_of_the_nodes_address() -> None:
    facts = with_report(healthy(), report(1, link(2, address="10.0.0.1", interface="enp3s0")))
    overlay = {**facts.overlay, "id1": facts.overlay["id1"].model_copy(update={"interface": "eth1"})}
    (found,) = (one for one in examine(replace(facts, overlay=overlay)) if one.check == "interface")
    assert (found.level, found.node) == ("ok", "node1")
    assert "Gloo and NCCL take eth1 in jobs' containers; it leaves by enp3s0 (10.0.0.1)" in found.what
    radio = link(2, address="192.168.7.5", interface="wlan0")
    other = only(with_report(healthy(), report(1, radio)))
    assert "to node2 leaves by wlan0 (192.168.7.5)" in other.what and "10.0.0.1" in other.what
    assert "--advertise-addr" in other.remedy


def copied(*outcomes: str) -> ClusterFacts:
    copies = tuple(
        GpuCopy(source=number, target=number + 1, outcome=outcome, words="cuX answers 2")
        for number, outcome in enumerate(outcomes)
    )
    found = report(2).model_copy(update={"copies": GpuCopies(gpus=len(outcomes) + 1, copies=copies)})
    return with_report(healthy(), found)


@pytest.mark.parametrize("outcome", ["wrong", "hung"])
def test_wrong_copies_between_gpus_name_the_pair_and_the_setting(outcome: str) -> None:
    finding = only(copied("right", outcome))
    assert (finding.level, finding.node, finding.check) == ("FAILED", "node2", "gpu-copies")
    assert "1 to 2" in finding.what and "0 to 1" not in finding.what
    assert "--env NCCL_P2P_DISABLE=1" in finding.remedy and "Dockerfile" in finding.remedy


def test_copies_that_could_not_be_tried_are_no_fault_of_the_gpus() -> None:
    assert only(copied("refused")).level == "warning" and "cuX answers 2" in only(copied("refused")).what
    silent = report(2).model_copy(update={"copies": GpuCopies(gpus=2, error="cuInit answers 999")})
    assert "cuInit answers 999" in only(with_report(healthy(), silent)).what


def test_what_needs_no_copies_is_said() -> None:
    def said(facts: ClusterFacts) -> list[tuple[str, str]]:
        return [(one.node, one.what) for one in examine(facts) if one.check == "gpu-copies"]

    assert said(healthy()) == [("cluster", "no node has an NVIDIA GPU: there are no copies between GPUs")]
    assert said(copied()) == [("node2", "one GPU: there are no copies between GPUs")]
    assert "offer no direct copies" in said(copied("not offered"))[0][1]


def test_containers_that_do_not_reach_each_other_name_the_ports() -> None:
    overlay = {**healthy().overlay, "id3": OverlayReport(node_id="id3", reached=("id1",))}
    finding = only(replace(healthy(), overlay=overlay))
    assert finding.node == "node3" and "node2" in finding.what and "node1" not in finding.what
    assert "4789/udp" in finding.remedy


def test_a_node_without_a_report_from_the_clusters_network_is_told() -> None:
    overlay = {name: one for name, one in healthy().overlay.items() if name != "id2"}
    assert only(replace(healthy(), overlay=overlay)).node == "node2"


def test_of_a_silent_node_the_others_say_nothing() -> None:
    facts = with_report(healthy(), report(1, link(2, error="no answer", sent_mbit=None, received_mbit=None)))
    assert only(facts).check == "link" and "5103/tcp" in only(facts).remedy
    asked = report(3, link(1), link(2), answers=(away("x", "tcp://10.0.0.2:7946", "no answer"),))
    facts = with_report(replace(facts, silent={"id2": "preparing"}), asked)
    assert only(facts).level == "warning" and "hub image" in only(facts).what


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (away("registry", "http://127.0.0.1:5100/v2/", "refused"), "relay"),
        (away("cache", "http://127.0.0.1:5101/v2/", "503 Away"), "minicluster_cache"),
        (away("service", "http://10.0.0.1:8082/x", "no answer"), "Open port 8082/tcp of 10.0.0.1"),
    ],
)
def test_a_door_that_does_not_answer_says_where_to_look(answer: TargetAnswer, words: str) -> None:
    finding = only(with_report(healthy(), report(2, answers=(answer,))))
    assert finding.node == "node2" and words in finding.remedy and answer.words in finding.what


def test_a_door_whose_service_does_not_run_is_not_told_twice() -> None:
    facts = with_report(healthy(), report(2, answers=(away("hub", "https://10.0.0.1:443/", "no answer"),)))
    assert only(replace(facts, services=(ServiceFacts("hub", 1, 0),))).check == "services"


def test_the_disk_holds_two_images_and_20_gb() -> None:
    low = only(with_report(healthy(), report(2, disk_free_bytes=15 * GB)))
    assert (
        low.level == "warning" and "15.0 of 500 GB free" in low.what and "docker system prune" in low.remedy
    )
    assert only(with_report(healthy(), report(2, disk_free_bytes=1 * GB))).level == "FAILED"
    large = replace(with_report(healthy(), report(2, disk_free_bytes=30 * GB)), image_bytes=18 * GB)
    assert "36 GB are recommended" in only(large).what


def test_a_disk_below_twice_its_reserve_is_told_with_what_happens_there() -> None:
    near = only(with_report(healthy(), report(2, disk_free_bytes=18 * GB)))
    assert near.level == "warning" and "will be below the reserve of 10.0 GB" in near.what
    below = only(with_report(healthy(), report(2, disk_free_bytes=9 * GB)))
    assert below.level == "FAILED" and "are ended: it is below the reserve of 10.0 GB" in below.what
    record = ClusterRecord(Choices(domain="lab.org", disk_reserve_bytes=50 * GB), "id1")
    chosen = replace(with_report(healthy(), report(2, disk_free_bytes=90 * GB)), record=record)
    assert [finding.node for finding in troubles(chosen)] == ["node2"]


def test_shared_memory_is_as_asked() -> None:
    assert (
        "64 MiB of /dev/shm instead of 1024"
        in only(with_report(healthy(), report(2, shm_bytes=64 << 20))).what
    )


@pytest.mark.parametrize(
    ("advertised", "state", "words"),
    [
        (0, {"driver_gpus": 2}, ["Swarm does not know"]),
        (2, {}, ["no NVIDIA driver"]),
        (2, {"driver_gpus": 1, "container_gpus": 1, "toolkit": "1.19.0"}, ["driver knows 1"]),
        (1, {"driver_gpus": 1, "container_gpus": 0, "toolkit": "1.19.0"}, ["default runtime"]),
        (1, {"driver_gpus": 1, "container_gpus": 1, "toolkit": "1.18.2"}, ["1.18.2 ignores"]),
        (1, {"driver_gpus": 1, "container_gpus": 1}, ["toolkit is unknown"]),
        (1, {"driver_gpus": 1, "container_gpus": 1, "toolkit": "1.19.1"}, []),
    ],
)
def test_gpu_nodes(advertised: int, state: dict[str, Any], words: list[str]) -> None:
    facts = with_report(healthy(), report(2, **state))
    ids = tuple(f"GPU-{number}" for number in range(advertised))
    found = troubles(replace(facts, nodes=(node(1), node(2, gpus=ids), node(3))))
    assert len(found) == len(words)
    assert all(word in finding.what for word, finding in zip(words, found, strict=True))


def test_the_table_merges_what_is_well_and_ends_with_the_count() -> None:
    facts = with_report(healthy(), report(2, disk_free_bytes=1 * GB))
    findings = examine(facts)
    table = as_table(findings, ["node1", "node2", "node3"])
    assert "ok       all nodes     Docker Engine " in table
    assert "running: hub, proxy, service, registry" in table
    assert "\nFAILED   node2 " in table and table.endswith("FAILED: 1, warnings: 0")
    assert json.loads(as_json(findings))[0] == {
        "level": "ok",
        "check": "swarm",
        "node": "cluster",
        "what": "Swarm is active, 3 nodes",
        "remedy": "",
    }


def test_work_that_fails_again_and_again_is_told_once() -> None:
    facts = healthy()
    target = Target(what="service", target="https://10.0.0.1:8083/services/minicluster/health")
    answers = (TargetAnswer(target=target, ok=True, set_aside=2),)
    for one in list(facts.reports.values()):
        facts = with_report(facts, one.model_copy(update={"answers": answers}))
    finding = only(facts)
    assert (finding.level, finding.check, finding.node) == ("warning", "set-aside", "cluster")
    assert "2 steps" in finding.what
