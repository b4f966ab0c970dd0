"""Rules for users' containers on the machines' own network, as text for iptables-restore: pure.

Packets from a container to an address of its own machine pass INPUT, those to other addresses DOCKER-USER.
Both jump to one chain of ours, which rejects a packet or returns. Traffic between containers on an overlay
network does not pass it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from ipaddress import ip_address, ip_network

ALLOWED_ENV, DENIED_ENV = "MINICLUSTER_ALLOWED", "MINICLUSTER_DENIED"
"""Endpoints and networks, with commas between."""
MANAGERS_ENV, NAME_SERVERS_ENV = "MINICLUSTER_MANAGERS", "MINICLUSTER_NAME_SERVERS"
"""Addresses, with commas between."""
SERVICES_ENV = "MINICLUSTER_SERVICES"
"""URLs of job services for agents, with commas between: NODE=URL for a job service, URL for a firewall."""
CHAIN = "MINICLUSTER-TENANTS"
BRIDGE = "docker_gwbridge"
"""Docker's bridge on each machine that leads from overlay networks to the outside."""
IPV4, IPV6 = 4, 6
LINK_LOCAL = ("169.254.0.0/16", "fe80::/10")
"""There, clouds serve a machine's credentials."""
_TO_MANY = {IPV4: ("BROADCAST", "MULTICAST"), IPV6: ("MULTICAST",)}
"""Types of addresses that belong to no single machine."""
_DNS = 53
_STUB = ("127.0.0.53",)
"""systemd-resolved: its servers are in a file that only the node has."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A TCP port of an address."""

    address: str
    port: int

    @classmethod
    def of(cls, text: str) -> Endpoint:
        """Read ADDRESS:PORT, or [ADDRESS]:PORT. Raises ValueError."""
        host, _, port = text.rpartition(":")
        network = ip_network(host.strip("[]"))
        if not port.isdecimal() or not 0 < int(port) < 1 << 16:
            raise ValueError(f"{text}: want ADDRESS:PORT with a port from 1 to 65535")
        return cls(str(network.network_address), int(port))


@dataclass(frozen=True, slots=True)
class Access:
    """The rights of users' containers.

    allowed: endpoints that they always reach. denied: networks that they do not reach.
    nodes: addresses of the cluster's machines; they do not reach these either.
    name_servers: the addresses of their DNS servers; None if unknown.
    """

    allowed: tuple[Endpoint, ...]
    denied: tuple[str, ...]
    nodes: tuple[str, ...] = ()
    name_servers: tuple[str, ...] | None = ()


def name_servers(resolv_conf: str) -> tuple[str, ...] | None:
    """Return the name servers that containers query, from resolv.conf of a container in the node's network.

    The engine itself queries those on the loopback. None: only systemd-resolved has them.
    """
    lines = (line.split() for line in resolv_conf.splitlines())
    named = tuple(words[1] for words in lines if len(words) > 1 and words[0] == "nameserver")
    return None if named == _STUB else tuple(one for one in named if _is_elsewhere(one))


def restore_input(access: Access, version: int) -> str:
    """Return the input of `iptables-restore --noflush` (version 6: `ip6tables-restore`) for the chain."""
    lines = ["*filter", f":{CHAIN} - [0:0]", *(f"-A {CHAIN} {rule}" for rule in _rules(access, version))]
    return "\n".join([*lines, "COMMIT", ""])


def _rules(access: Access, version: int) -> Iterator[str]:
    """Yield the rules in their order. A packet that matches none passes as if there were no rules."""
    # The kernel gives such packets to each socket that is bound to no address. VXLAN's socket would accept
    # them as traffic of any overlay network.
    for kind in _TO_MANY[version]:
        yield f"-p udp -m addrtype --dst-type {kind} -j DROP"
    yield "-m conntrack --ctstate RELATED,ESTABLISHED -j RETURN"
    for one in access.allowed:
        if _is_of(one.address, version):
            # The original address: a published port leads to the address of a container.
            called = f"--ctorigdst {one.address} --ctorigdstport {one.port}"
            yield f"-p tcp -m conntrack {called} -j RETURN"
    for address in _of_version(access.name_servers or (), version):
        yield from _names(f"--ctorigdst {address} ")
    yield "-m addrtype --dst-type LOCAL -j REJECT"
    for address in _of_version(access.nodes, version):
        yield f"-m conntrack --ctorigdst {address} -j REJECT"
    if access.name_servers is None:
        yield from _names()
    for network in _of_version((*LINK_LOCAL, *access.denied), version):
        yield f"-m conntrack --ctorigdst {network} -j REJECT"


def _names(at: str = "") -> Iterator[str]:
    for protocol in ("udp", "tcp"):
        yield f"-p {protocol} -m conntrack {at}--ctorigdstport {_DNS} -j RETURN"


def _is_elsewhere(address: str) -> bool:
    """Whether a text is an address outside the loopback. No container reaches one with a zone (`%eth0`)."""
    try:
        return "%" not in address and not ip_address(address).is_loopback
    except ValueError:
        return False


def _of_version(networks: Iterable[str], version: int) -> list[str]:
    return list(dict.fromkeys(network for network in networks if _is_of(network, version)))


def _is_of(network: str, version: int) -> bool:
    return ip_network(network).version == version
