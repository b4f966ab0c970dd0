"""What containers of users may reach on the machines' own network, as text for iptables-restore: pure.

Packets that a container sends to an address of its own machine come through INPUT, those to other addresses
through DOCKER-USER. Both lead into one chain of ours, which rejects a packet or returns. Traffic between
containers on an overlay network does not come here.
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
"""Where job services answer agents, with commas between: NODE=URL for a job service, URL for a firewall."""
CHAIN = "MINICLUSTER-TENANTS"
BRIDGE = "docker_gwbridge"
"""Docker's bridge on each machine from overlay networks to the outside."""
IPV4, IPV6 = 4, 6
LINK_LOCAL = ("169.254.0.0/16", "fe80::/10")
"""Clouds answer there with a machine's own credentials."""
_TO_MANY = {IPV4: ("BROADCAST", "MULTICAST"), IPV6: ("MULTICAST",)}
"""Kinds of addresses that are nobody's own."""
_DNS = 53
_STUB = ("127.0.0.53",)
"""Of systemd-resolved: the servers that it asks are in a file that only the node has."""


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
    """What users' containers may reach.

    allowed: endpoints that they reach in any case. denied: networks that they do not reach.
    nodes: addresses of the cluster's machines, which they do not reach either.
    name_servers: addresses that they ask for names; None if unknown.
    """

    allowed: tuple[Endpoint, ...]
    denied: tuple[str, ...]
    nodes: tuple[str, ...] = ()
    name_servers: tuple[str, ...] | None = ()


def name_servers(resolv_conf: str) -> tuple[str, ...] | None:
    """Return the name servers that containers ask, by the resolv.conf of a container in the node's network.

    Those on the loopback are asked by the engine itself, from the node. None: only systemd-resolved knows.
    """
    lines = (line.split() for line in resolv_conf.splitlines())
    named = tuple(words[1] for words in lines if len(words) > 1 and words[0] == "nameserver")
    return None if named == _STUB else tuple(one for one in named if _is_elsewhere(one))


def restore_input(access: Access, version: int) -> str:
    """Return the input of `iptables-restore --noflush` (version 6: `ip6tables-restore`) for the chain."""
    lines = ["*filter", f":{CHAIN} - [0:0]", *(f"-A {CHAIN} {rule}" for rule in _rules(access, version))]
    return "\n".join([*lines, "COMMIT", ""])


def _rules(access: Access, version: int) -> Iterator[str]:
    """Yield the rules in their order; a packet that matches none goes on as if there were no rules."""
    # The kernel gives such packets to each socket that is bound to no address, also to that of VXLAN, which
    # would take them for traffic of any overlay network.
    for kind in _TO_MANY[version]:
        yield f"-p udp -m addrtype --dst-type {kind} -j DROP"
    yield "-m conntrack --ctstate RELATED,ESTABLISHED -j RETURN"
    for one in access.allowed:
        if _is_of(one.address, version):
            # The original address: a published port leads to a container's own address.
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
    """Whether it is an address, and none of the loopback. With a zone (`%eth0`) no container reaches it."""
    try:
        return "%" not in address and not ip_address(address).is_loopback
    except ValueError:
        return False


def _of_version(networks: Iterable[str], version: int) -> list[str]:
    return list(dict.fromkeys(network for network in networks if _is_of(network, version)))


def _is_of(network: str, version: int) -> bool:
    return ip_network(network).version == version
