"""Checks of what lies between the nodes: clocks, ports, the overlay network, and how fast it is. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from minicluster_hub.cluster.doctor.facts import ClusterFacts
from minicluster_hub.cluster.doctor.findings import EVERYWHERE, Finding, failed, ok, warning
from minicluster_hub.cluster.doctor.report import PROBE_PORT, Link
from minicluster_hub.engines.swarm.names import CLUSTER

MAX_CLOCK_S = 0.5
SLOW_MBIT = 400
_GIGABIT = 1000
_FAST_ETHERNET = (60, 105)


@dataclass(frozen=True)
class Way:
    """A measured link by the names of its ends, the measuring one first."""

    start: str
    end: str
    link: Link

    @property
    def slow(self) -> bool:
        rate = self.link.measured_mbit
        return rate is not None and rate < SLOW_MBIT


def check_clocks(facts: ClusterFacts) -> Iterator[Finding]:
    """Tokens and logs suffer from clocks that differ; the leader's is taken as right."""
    leader = facts.leader
    for node, report in facts.reporting:
        ahead_s = next(
            (link.clock_ahead_s for link in report.links if leader and link.peer == leader.id), None
        )
        if leader is None or ahead_s is None:
            continue
        if abs(ahead_s) <= MAX_CLOCK_S:
            yield ok("clock", node.name, f"clock agrees with {leader.name}'s")
        else:
            word = "behind" if ahead_s > 0 else "ahead of"
            words = f"its clock is {abs(ahead_s):.1f} s {word} {leader.name}'s"
            yield failed(
                "clock", node.name, words, "Let both follow a time server: timedatectl set-ntp true."
            )


def check_ports(facts: ClusterFacts) -> Iterator[Finding]:
    """Containers on different nodes reach each other only when the Swarm's ports are open."""
    for node, report in facts.reporting:
        for link in report.links:
            if link.error and link.peer not in facts.silent:
                words = f"the link to {facts.name(link.peer)} cannot be measured: {link.error}"
                remedy = f"Open {PROBE_PORT}/tcp between all nodes, which only doctor uses, and run it again."
                yield warning("link", node.name, words, remedy)
    if facts.overlay_tried:
        yield from _check_overlay(facts)


def _check_overlay(facts: ClusterFacts) -> Iterator[Finding]:
    tried = [node for node in facts.nodes if node.id in facts.overlay]
    for node, _ in facts.reporting:
        if node not in tried:
            words = "no container on the cluster's network reported from it"
            remedy = f"See docker network inspect {CLUSTER} there, and its Docker log: journalctl -u docker."
            yield failed("overlay", node.name, words, remedy)
    for node in tried:
        report = facts.overlay[node.id]
        lost = [peer.name for peer in tried if peer.id not in report.reached and peer.id != node.id]
        if lost or report.error:
            words = f"its containers do not reach those on {', '.join(lost) or 'other nodes'}"
            reason = f" ({report.error})" if report.error else ""
            remedy = "Open 7946/tcp, 7946/udp and 4789/udp between all nodes in their firewalls."
            yield failed("overlay", node.name, words + reason, remedy)
        elif len(tried) > 1:
            yield ok("overlay", node.name, "containers reach those on the other nodes")
        yield _firewall(node.name, report.open)


def _firewall(name: str, opened: Sequence[str]) -> Finding:
    if not opened:
        return ok("firewall", name, "users' containers do not reach the machines' own ports")
    words = f"users' containers reach {', '.join(opened)}"
    remedy = "Run `up` again; then see docker service logs minicluster_firewall."
    return failed("firewall", name, words, remedy)


def check_links(facts: ClusterFacts) -> Iterator[Finding]:
    """Name the interface, cable or radio that makes distributed jobs slow."""
    ways = [
        Way(node.name, facts.name(link.peer), link)
        for node, report in facts.reporting
        for link in report.links
        if link.measured_mbit is not None
    ]
    slow = [way for way in ways if way.slow]
    culprit = _culprit(slow, ways)
    if culprit:
        yield _slow_node(culprit, [way for way in slow if culprit in (way.start, way.end)])
    for way in slow:
        if culprit not in (way.start, way.end):
            yield warning("link", way.start, f"to {way.end}: {_speed(way.link)}", _remedy(way.link))
    for way in ways:
        if way.link.wireless and way not in slow:
            yield warning("link", way.start, f"to {way.end}: {_speed(way.link)}", _remedy(way.link))
    if ways and not slow:
        rates = [way.link.measured_mbit or 0 for way in ways]
        yield ok("link", EVERYWHERE, f"links carry {_rate(min(rates))} to {_rate(max(rates))}")


def _culprit(slow: list[Way], ways: list[Way]) -> str:
    """Return the one node whose links are all slow while those between the others are not."""
    counts = Counter(name for way in slow for name in (way.start, way.end))
    name, count = counts.most_common(1)[0] if counts else ("", 0)
    all_of_it = [way for way in ways if name in (way.start, way.end)]
    alone = [other for other, shared in counts.items() if shared == count] == [name]
    return name if count > 1 and count == len(all_of_it) and alone else ""


def _slow_node(name: str, ways: list[Way]) -> Finding:
    own = next((way for way in ways if way.start == name), ways[0])
    slowest = min(ways, key=lambda way: way.link.measured_mbit or 0)
    words = f"all its links are slow: {_speed(slowest.link, own.link)}"
    return warning("link", name, words, _remedy(own.link, slowest.link.measured_mbit))


def _speed(link: Link, named: Link | None = None) -> str:
    """Say what was measured, on which interface, and what that one claims."""
    shown = named or link
    kind = (
        "Wi-Fi" if shown.wireless else f"{shown.speed_mbit} Mbit/s" if shown.speed_mbit else "speed unknown"
    )
    return (
        f"{_rate(link.measured_mbit or 0)} measured over {shown.interface or 'an unknown interface'} ({kind})"
    )


def _remedy(link: Link, measured_mbit: float | None = None) -> str:
    rate = measured_mbit or link.measured_mbit or 0
    if link.wireless:
        return "Use a cable: Wi-Fi makes distributed jobs slow and uneven."
    if link.speed_mbit == 100 or _FAST_ETHERNET[0] <= rate <= _FAST_ETHERNET[1]:
        return "That is a 100 Mbit/s link: change the cable (8 wires), the switch, or a fixed speed."
    return (
        "Look for other traffic on it, a bad cable, or a slow switch between; ethtool shows each end's speed."
    )


def _rate(mbit: float) -> str:
    return f"{mbit / 1000:.1f} Gbit/s" if mbit >= _GIGABIT else f"{mbit:.0f} Mbit/s"
