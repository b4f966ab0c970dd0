"""The doctor's probes, as processes on three hosts of one switch: single flows, interfaces."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import permutations

import pytest

from minicluster_hub.cluster.doctor.command import examine
from minicluster_hub.cluster.doctor.facts import ClusterFacts, SwarmFacts
from minicluster_hub.cluster.doctor.findings import Finding
from minicluster_hub.cluster.doctor.messages import PROBE_PORT, REPORT_PREFIX, NodeReport, Peer, ProbeTask
from minicluster_hub.cluster.doctor.probe import NODE_ENV, TASK_ENV

from ..engines.swarm_nodes import node

NODES = (node(1), node(2), node(3))
PROBE = [sys.executable, "-P", "-m", "minicluster_hub.cluster.doctor.probe"]


class Hosts:
    """A network namespace for each node, with its address, and one for the switch."""

    def __init__(self) -> None:
        self._name = f"mc-flows-{os.getpid()}"

    def make(self) -> None:
        run("ip", "netns", "add", self.name(0))
        self.ip(0, "link", "add", "switch", "type", "bridge")
        self.ip(0, "link", "set", "switch", "up")
        for number, one in enumerate(NODES, 1):
            run("ip", "netns", "add", self.name(number))
            port = f"port{number}"
            self.ip(
                0, "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", self.name(number)
            )
            self.ip(0, "link", "set", port, "master", "switch", "up")
            self.ip(number, "addr", "add", f"{one.address}/24", "dev", "eth0")
            self.ip(number, "link", "set", "eth0", "up")
            self.ip(number, "link", "set", "lo", "up")

    def remove(self) -> None:
        for number in range(len(NODES) + 1):
            subprocess.run(["ip", "netns", "del", self.name(number)], check=False, capture_output=True)

    def name(self, number: int) -> str:
        return f"{self._name}-{number}"

    def ip(self, number: int, *words: str) -> None:
        run("ip", "-n", self.name(number), *words)

    def limit(self, number: int, mbit: int) -> None:
        """Limit what a host sends; the rest of its cable is as before."""
        shape = ["tbf", "rate", f"{mbit}mbit", "burst", "256kb", "latency", "50ms"]
        run("tc", "-n", self.name(number), "qdisc", "add", "dev", "eth0", "root", *shape)

    def facts(self) -> ClusterFacts:
        """Run a probe on each host; return what they report."""
        peers = tuple(Peer(id=one.id, name=one.name, address=one.address) for one in NODES)
        task = ProbeTask(token="word", port=PROBE_PORT, peers=peers)
        probes = [self._probe(number, task) for number in range(1, len(NODES) + 1)]
        try:
            reports = [_report(probe) for probe in probes]
        finally:
            for probe in probes:
                probe.kill()
                probe.communicate()
        return ClusterFacts(SwarmFacts("active", True), NODES, reports={one.node_id: one for one in reports})

    def _probe(self, number: int, task: ProbeTask) -> subprocess.Popen[str]:
        environ = os.environ | {TASK_ENV: task.model_dump_json(), NODE_ENV: NODES[number - 1].id}
        command = ["ip", "netns", "exec", self.name(number), *PROBE]
        return subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, text=True)


def run(*words: str) -> None:
    subprocess.run(words, check=True)


def _report(probe: subprocess.Popen[str]) -> NodeReport:
    assert probe.stdout is not None
    line = probe.stdout.readline()
    assert line.startswith(REPORT_PREFIX), line
    return NodeReport.model_validate_json(line.removeprefix(REPORT_PREFIX))


@pytest.fixture
def hosts(needs: Callable[[object, str], None]) -> Iterator[Hosts]:
    programs = shutil.which("ip") and shutil.which("tc")
    needs(os.geteuid() == 0 and programs, "needs root and iproute2, for network namespaces")
    made = Hosts()
    try:
        made.make()
        yield made
    finally:
        made.remove()


def rates(facts: ClusterFacts) -> dict[tuple[str, str], float | None]:
    """Return the Mbit/s of each flow, by the nodes that send and receive it."""
    found: dict[tuple[str, str], float | None] = {}
    for one, report in facts.reporting:
        for link in report.links:
            assert link.error == "" and link.interface == "eth0"
            if link.measured_mbit is not None:
                found[one.id, link.peer] = link.sent_mbit
                found[link.peer, one.id] = link.received_mbit
    return found


def test_each_two_hosts_are_measured_both_ways(hosts: Hosts) -> None:
    ids = [one.id for one in NODES]
    assert set(rates(hosts.facts())) == set(permutations(ids, 2))


def test_a_cable_that_is_slow_one_way_is_seen_in_both_its_flows_and_in_no_other(hosts: Hosts) -> None:
    hosts.limit(2, mbit=20)
    found = rates(hosts.facts())
    slow = {flow for flow, mbit in found.items() if mbit is not None and mbit < 30}
    assert slow == {("id2", "id1"), ("id2", "id3")}, found


def test_another_way_out_than_the_address_in_the_swarm_is_told(hosts: Hosts) -> None:
    hosts.ip(1, "addr", "add", "10.0.0.101/24", "dev", "eth0")
    hosts.ip(1, "route", "replace", f"{NODES[1].address}/32", "dev", "eth0", "src", "10.0.0.101")
    by_node: dict[str, list[Finding]] = {}
    for one in examine(hosts.facts()):
        if one.check == "interface":
            by_node.setdefault(one.node, []).append(one)
    (told,) = by_node["node1"]
    assert told.level == "warning" and "to node2 leaves by eth0 (10.0.0.101)" in told.what
    assert [one.level for one in (*by_node["node2"], *by_node["node3"])] == ["ok", "ok"]
