"""The addresses of this machine on all its networks: users' containers are kept away from each of them."""

from __future__ import annotations

import socket
from ipaddress import ip_address

import psutil

_FAMILIES = (socket.AF_INET, socket.AF_INET6)


def own_addresses() -> tuple[str, ...]:
    """Return them but for those that lead nowhere else: of the loopback, and link-local ones."""
    told = (one for held in psutil.net_if_addrs().values() for one in held if one.family in _FAMILIES)
    found = {ip_address(one.address.partition("%")[0]) for one in told}
    return tuple(sorted(str(one) for one in found if not (one.is_loopback or one.is_link_local)))
