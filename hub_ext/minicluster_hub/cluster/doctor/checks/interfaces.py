"""Checks which interface the traffic between ranks takes. Pure.

In a job's container, Minicluster sets GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME to the interface that
leads to the other ranks. Its packets leave the machine by the interface that leads to the other node.
"""

from __future__ import annotations

from collections.abc import Iterator

from minicluster_hub.cluster.doctor.facts import ClusterFacts
from minicluster_hub.cluster.doctor.findings import Finding, ok, warning
from minicluster_hub.cluster.doctor.messages import PeerLink
from minicluster_hub.engines.swarm.view import SwarmNode


def check_interfaces(facts: ClusterFacts) -> Iterator[Finding]:
    """Check that each node sends by the interface whose address the Swarm knows."""
    for node, report in facts.reporting:
        known = [link for link in report.links if link.interface and link.address]
        others = [link for link in known if link.address != node.address]
        if others:
            yield from (_other_way(facts, node, link) for link in others)
            continue
        if known:
            taken = f"it leaves by {known[0].interface} ({node.address}), its address in the Swarm"
            yield ok("interface", node.name, f"{_in_containers(facts, node)}{taken}")


def _in_containers(facts: ClusterFacts, node: SwarmNode) -> str:
    overlay = facts.overlay.get(node.id)
    interface = overlay.interface if overlay else ""
    return f"Gloo and NCCL take {interface} in jobs' containers; " if interface else "traffic between ranks: "


def _other_way(facts: ClusterFacts, node: SwarmNode, link: PeerLink) -> Finding:
    way = f"{link.interface} ({link.address}{', Wi-Fi' if link.wireless else ''})"
    words = (
        f"what Gloo and NCCL send to {facts.name(link.peer)} leaves by {way}, not by the interface of its "
        f"address in the Swarm, {node.address}"
    )
    remedy = (
        "See `ip route get` to that node: take the route away, or let the machine join again by the "
        "interface that jobs shall use: docker swarm join --advertise-addr INTERFACE."
    )
    return warning("interface", node.name, words, remedy)


CHECKS = (check_interfaces,)
