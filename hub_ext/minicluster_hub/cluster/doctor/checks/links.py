"""Checks between the nodes: clocks, ports, the overlay network, and single TCP flows each way. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from minicluster_hub.cluster.doctor.facts import ClusterFacts
from minicluster_hub.cluster.doctor.findings import Finding, failed, ok, warning
from minicluster_hub.cluster.doctor.messages import PROBE_PORT, PeerLink
from minicluster_hub.engines.swarm.names import CLUSTER

MAX_CLOCK_S = 0.5
SLOW_MBIT = 400
_GBIT_FROM = 500
_USUAL_SHARE, _NOMINAL_SHARE = 0.33, 0.5
"""A flow below these shares of the usual rate and of what both ends can is slow. Busy machines vary."""
_UNEVEN = 0.5
"""Below this share of the other way's rate, one way has a fault of its own."""
_FAST_ETHERNET = (60, 105)


@dataclass(frozen=True)
class MeasuredLink:
    """A link and the names of its nodes. start: the node that measured it. mbit: of the slower way.

    nominal_mbit: the speed of the slower end's interface, if it is known.
    """

    start: str
    end: str
    link: PeerLink
    mbit: float
    nominal_mbit: int | None

    def slow(self, usual_mbit: float) -> bool:
        below_nominal = self.nominal_mbit is not None and self.mbit < _NOMINAL_SHARE * self.nominal_mbit
        return self.mbit < SLOW_MBIT or (below_nominal and self.mbit < _USUAL_SHARE * usual_mbit)


def check_clocks(facts: ClusterFacts) -> Iterator[Finding]:
    """Compare the nodes' clocks with the leader's: tokens and logs need clocks that agree."""
    leader = facts.leader
    if leader is None:
        return
    for node, report in facts.reporting:
        ahead_s = next((link.clock_ahead_s for link in report.links if link.peer == leader.id), None)
        if ahead_s is None:
            continue
        if abs(ahead_s) <= MAX_CLOCK_S:
            yield ok("clock", node.name, f"clock agrees with {leader.name}'s")
        else:
            direction = "behind" if ahead_s > 0 else "ahead of"
            words = f"its clock is {abs(ahead_s):.1f} s {direction} {leader.name}'s"
            remedy = "Let both follow a time server: timedatectl set-ntp true."
            yield failed("clock", node.name, words, remedy)


def check_ports(facts: ClusterFacts) -> Iterator[Finding]:
    """Check that the Swarm's ports are open: containers on different nodes need them."""
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
    """Find the interface, cable or radio that makes distributed jobs slow."""
    measured = list(_measured(facts))
    usual_mbit = median(one.mbit for one in measured) if measured else 0.0
    slow = [one for one in measured if one.slow(usual_mbit)]
    culprit = _culprit(slow, measured)
    if culprit:
        yield _slow_node(culprit, [one for one in slow if culprit in (one.start, one.end)])
    single = [one for one in slow if culprit not in (one.start, one.end)]
    wireless = [one for one in measured if one.link.wireless and one not in slow]
    for one in (*single, *wireless):
        yield warning("link", one.start, f"to {one.end}: {_speed(one.link)}", _remedy(one.link))
    yield from _half_duplex(facts)
    for node, _ in facts.reporting:
        flows = [_flow(one) for one in measured if one.start == node.name and one not in slow]
        if flows:
            yield ok("link", node.name, f"single TCP flows, there and back: {', '.join(flows)}")


def _measured(facts: ClusterFacts) -> Iterator[MeasuredLink]:
    nominal = {
        (node.id, link.peer): link.speed_mbit for node, report in facts.reporting for link in report.links
    }
    for node, report in facts.reporting:
        for link in report.links:
            if link.measured_mbit is not None:
                speeds = [link.speed_mbit, nominal.get((link.peer, node.id))]
                slower = min(filter(None, speeds), default=None)
                yield MeasuredLink(node.name, facts.name(link.peer), link, link.measured_mbit, slower)


def _half_duplex(facts: ClusterFacts) -> Iterator[Finding]:
    for node, report in facts.reporting:
        for interface in sorted({link.interface for link in report.links if link.half_duplex}):
            words = f"{interface} runs at half duplex: it sends or receives, and ranks do both at once"
            remedy = f"Set both ends to automatic: ethtool -s {interface} autoneg on, and the switch's port."
            yield warning("link", node.name, words, remedy)


def _culprit(slow: list[MeasuredLink], measured: list[MeasuredLink]) -> str:
    """Return the one node that has only slow links; "" if there is none, or several."""
    counts = Counter(name for one in slow for name in (one.start, one.end))
    name, count = counts.most_common(1)[0] if counts else ("", 0)
    all_of_it = [one for one in measured if name in (one.start, one.end)]
    alone = [other for other, shared in counts.items() if shared == count] == [name]
    return name if count > 1 and count == len(all_of_it) and alone else ""


def _slow_node(name: str, measured: list[MeasuredLink]) -> Finding:
    own = next((one for one in measured if one.start == name), measured[0])
    slowest = min(measured, key=lambda one: one.mbit)
    words = f"all its links are slow: {_speed(slowest.link, own.link)}"
    return warning("link", name, words, _remedy(own.link, slowest.link))


def _flow(one: MeasuredLink) -> str:
    return f"{one.end} {_rate(one.link.sent_mbit)}, {_rate(one.link.received_mbit)}"


def _speed(link: PeerLink, named: PeerLink | None = None) -> str:
    """Return the measured rates, the interface, and the interface's nominal speed."""
    shown = named or link
    nominal = f"{shown.speed_mbit} Mbit/s" if shown.speed_mbit else "speed unknown"
    kind, interface = "Wi-Fi" if shown.wireless else nominal, shown.interface or "an unknown interface"
    rates = f"{_rate(link.sent_mbit)} there and {_rate(link.received_mbit)} back"
    return f"{rates} measured in single TCP flows over {interface} ({kind})"


def _remedy(link: PeerLink, measured: PeerLink | None = None) -> str:
    rates = [
        rate for rate in ((measured or link).sent_mbit, (measured or link).received_mbit) if rate is not None
    ]
    interface = link.interface or "the interface"
    if link.wireless:
        return "Use a cable: Wi-Fi makes distributed jobs slow and uneven."
    if link.speed_mbit == 100 or any(_FAST_ETHERNET[0] <= rate <= _FAST_ETHERNET[1] for rate in rates):
        return "That is a 100 Mbit/s link: change the cable (8 wires), the switch, or a fixed speed."
    if min(rates) < _UNEVEN * max(rates):
        return (
            "One way is much slower: mostly the two ends of a cable differ in duplex, or the cable is bad. "
            f"Compare `ethtool {interface}` with the switch's port, set both to automatic; try another cable."
        )
    return (
        f"Try another cable, then another port of the switch; `ethtool {interface}` shows speed and duplex. "
        "Look for other traffic, too."
    )


def _rate(mbit: float | None) -> str:
    if mbit is None:
        return "unknown"
    return f"{mbit / 1000:.2f} Gbit/s" if mbit >= _GBIT_FROM else f"{mbit:.0f} Mbit/s"


CHECKS = (check_clocks, check_ports, check_links)
