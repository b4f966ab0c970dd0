"""Which interface leads to a peer, asked of the kernel, and what that interface is."""

from __future__ import annotations

import socket
from pathlib import Path

import psutil

from minicluster_hub.cluster.doctor.report import Link, Peer

_DISCARD_PORT = 9


def route_to(peer: Peer) -> Link:
    """Return the interface on the way to a peer with its nominal speed; nothing is sent."""
    interface = _interface(_source_address(peer.address))
    stats = psutil.net_if_stats().get(interface)
    folder = Path("/sys/class/net") / (interface or "none")
    return Link(
        peer=peer.id,
        interface=interface,
        speed_mbit=stats.speed or None if stats else None,
        wireless=(folder / "wireless").exists() or (folder / "phy80211").exists(),
    )


def _source_address(peer: str) -> str:
    family = socket.AF_INET6 if ":" in peer else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((peer, _DISCARD_PORT))
        except OSError:
            return ""
        return probe.getsockname()[0]


def _interface(address: str) -> str:
    for name, held in psutil.net_if_addrs().items():
        if any(one.address.partition("%")[0] == address for one in held):
            return name
    return ""
