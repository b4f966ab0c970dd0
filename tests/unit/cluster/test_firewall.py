"""What users' containers can reach on the machines' network: rules as text, and in a real packet filter."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from minicluster_hub.cluster.firewall.program import Nodes
from minicluster_hub.cluster.firewall.rules import (
    ALLOWED_ENV,
    CHAIN,
    DENIED_ENV,
    Access,
    Endpoint,
    name_servers,
    restore_input,
)

ACCESS = Access(
    (Endpoint("10.0.0.1", 443), Endpoint("fd00::1", 443)),
    ("10.0.0.0/24", "fd00::/8"),
    ("10.0.0.1", "10.66.0.1"),
    ("10.0.0.53", "fd00::53"),
)


def rules(version: int, access: Access = ACCESS) -> list[str]:
    lines = restore_input(access, version).splitlines()
    return [line.removeprefix(f"-A {CHAIN} ") for line in lines if line.startswith("-A")]


def test_what_is_allowed_comes_before_what_is_denied() -> None:
    found = rules(4)
    allowed = found.index("-p tcp -m conntrack --ctorigdst 10.0.0.1 --ctorigdstport 443 -j RETURN")
    refused = [number for number, rule in enumerate(found) if rule.endswith("REJECT")]
    assert allowed < min(refused)
    assert "-m conntrack --ctorigdst 10.0.0.0/24 -j REJECT" in found
    assert "-m conntrack --ctorigdst 169.254.0.0/16 -j REJECT" in found


def test_each_version_has_its_own_addresses() -> None:
    assert not [rule for rule in rules(4) if "fd00" in rule]
    assert not [rule for rule in rules(6) if "10.0.0" in rule or "169.254" in rule]
    assert "-m conntrack --ctorigdst fd00::/8 -j REJECT" in rules(6)


def test_names_are_asked_for_at_the_name_servers_and_nowhere_else() -> None:
    found = [rule for rule in rules(4) if "53" in rule]
    called = "-m conntrack --ctorigdst 10.0.0.53 --ctorigdstport 53 -j RETURN"
    assert found == [f"-p udp {called}", f"-p tcp {called}"]
    assert rules(4).index(found[1]) < rules(4).index("-m addrtype --dst-type LOCAL -j REJECT")


def test_name_servers_are_those_that_containers_ask_themselves() -> None:
    resolv_conf = """# a comment\nsearch lab.org\nnameserver 10.0.0.53\nnameserver fd00::53
    nameserver 127.0.0.53\nnameserver ::1\nnameserver fe80::1%eth0\nnameserver\nnameserver dns.lab.org\n"""
    assert name_servers(resolv_conf) == ("10.0.0.53", "fd00::53")
    assert name_servers("nameserver 127.0.0.1") == ()
    assert name_servers("nameserver 127.0.0.53\nsearch lab.org") is None


def test_where_nobody_knows_the_name_servers_they_are_anywhere_but_on_the_machines() -> None:
    found = rules(4, replace(ACCESS, name_servers=None))
    anywhere = found.index("-p udp -m conntrack --ctorigdstport 53 -j RETURN")
    for before in (
        "-m addrtype --dst-type LOCAL",
        *(f"-m conntrack --ctorigdst {one}" for one in ACCESS.nodes),
    ):
        assert found.index(f"{before} -j REJECT") < anywhere
    assert anywhere < found.index("-m conntrack --ctorigdst 169.254.0.0/16 -j REJECT")


def test_an_address_is_denied_until_many_answers_were_without_it() -> None:
    answers = [["10.0.0.1", "10.66.0.1"], *[["10.0.0.1"]] * 59]
    nodes = Told(answers)
    assert {nodes.addresses() for _ in answers} == {("10.0.0.1", "10.66.0.1")}
    nodes.answers = [OSError("the job service is away"), ["10.0.0.1"]]
    assert [nodes.addresses(), nodes.addresses()] == [("10.0.0.1", "10.66.0.1"), ("10.0.0.1",)]


class Told(Nodes):
    """A client that gets these answers of a job service, one after the other."""

    def __init__(self, answers: Sequence[list[str] | OSError]) -> None:
        super().__init__(["https://10.0.0.1:8083/"], Path())
        self.answers = list(answers)

    def _request(self, url: str) -> tuple[str, ...]:
        answer = self.answers.pop(0)
        if isinstance(answer, OSError):
            raise answer
        return tuple(answer)


@pytest.mark.parametrize("text", ["10.0.0.1", "10.0.0.1:0", "10.0.0.1:70000", "pc-1:80", "10.0.0.1:8 -j X"])
def test_an_endpoint_is_an_address_with_a_port_and_nothing_else(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        Endpoint.of(text)


def test_an_endpoint_may_be_of_either_version() -> None:
    assert Endpoint.of("10.0.0.1:443") == Endpoint("10.0.0.1", 443)
    assert Endpoint.of("[fd00::1]:443") == Endpoint("fd00::1", 443)


def test_packets_to_many_are_dropped_before_anything_is_let_pass() -> None:
    assert rules(4)[:2] == [
        f"-p udp -m addrtype --dst-type {kind} -j DROP" for kind in ("BROADCAST", "MULTICAST")
    ]
    assert rules(6)[0] == "-p udp -m addrtype --dst-type MULTICAST -j DROP"


A_CONTAINER_CALLS = """
set -e
ip link set lo up
ip link add docker_gwbridge type bridge
ip address add 172.18.0.1/16 dev docker_gwbridge
ip link set docker_gwbridge up
unshare --net sleep 60 & container=$!
trap 'kill $container' EXIT
until [ "$(readlink /proc/$container/ns/net)" != "$(readlink /proc/$$/ns/net)" ]; do sleep 0.05; done
ip link add port type veth peer name eth0 netns $container
ip link set port master docker_gwbridge up
inside() {{ nsenter --target $container --net "$@"; }}
inside ip address add 172.18.0.5/16 broadcast 172.18.255.255 dev eth0
inside ip link set eth0 up
inside ip route add default via 172.18.0.1
{python} -c '{listens}' & listener=$!
calls() {{ for address in 172.18.255.255 255.255.255.255 224.0.0.1 172.18.0.1; do
    inside {python} -c '{calls}' $address "$1"; done; }}
until [ -e {seen} ]; do sleep 0.05; done
calls open
echo '{rules}' | iptables-nft-restore --noflush
iptables-nft -I INPUT -i docker_gwbridge -j {chain}
calls shut
echo end | {python} -c '{tells}'
wait $listener
"""
LISTENS = """
import pathlib, socket
door = socket.socket(type=socket.SOCK_DGRAM)
door.bind(("0.0.0.0", 4789))
pathlib.Path("{seen}").touch()
while (said := door.recv(99).decode()) != "end":
    print(said, flush=True)
"""
CALLS = """
import socket, sys
door = socket.socket(type=socket.SOCK_DGRAM)
door.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
door.sendto(sys.argv[2].encode(), (sys.argv[1], 4789))
"""
TELLS = """
import socket
socket.socket(type=socket.SOCK_DGRAM).sendto(b"end", ("127.0.0.1", 4789))
"""


@pytest.mark.timeout(60)
def test_a_container_reaches_no_socket_of_the_machine_by_calling_all(needs, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    """Port 4789 is VXLAN's: a container that reaches it is in all overlay networks of the machine."""
    needs(
        os.getuid() == 0 and shutil.which("iptables-nft") and shutil.which("ip"), "root, iptables, iproute2"
    )
    script = A_CONTAINER_CALLS.format(
        python=Path(sys.executable),
        listens=LISTENS.format(seen=tmp_path / "seen"),
        calls=CALLS,
        tells=TELLS,
        seen=tmp_path / "seen",
        rules=restore_input(ACCESS, 4),
        chain=CHAIN,
    )
    done = subprocess.run(
        ["unshare", "--net", "bash", "-c", script], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["open"] * 4, done


IN_A_NETWORK_OF_ITS_OWN = """
set -e
iptables-nft -N DOCKER-USER
iptables-nft -A DOCKER-USER -j RETURN
{python} -m minicluster_hub.cluster run firewall & firewall=$!
seen() {{ iptables-nft -S "$1" | grep -q -- "-i docker_gwbridge -j {chain}"; }}
until seen INPUT && seen DOCKER-USER; do sleep 0.05; done
iptables-nft -D INPUT -i docker_gwbridge -j {chain}
until seen INPUT; do sleep 0.05; done
echo mended
kill $firewall; wait $firewall
seen DOCKER-USER && echo stays
{python} -c "from minicluster_hub.cluster.firewall import program; program.remove()"
iptables-nft -S
"""


@pytest.mark.timeout(60)
def test_the_rules_are_kept_and_taken_away(needs) -> None:  # type: ignore[no-untyped-def]
    is_root = os.getuid() == 0
    needs(is_root and shutil.which("iptables-nft"), "root and Debian's iptables")
    script = IN_A_NETWORK_OF_ITS_OWN.format(python=Path(sys.executable), chain=CHAIN)
    environment = {**os.environ, ALLOWED_ENV: "10.0.0.1:443", DENIED_ENV: "10.0.0.1,10.0.0.2"}
    done = subprocess.run(
        ["unshare", "--net", "bash", "-c", script],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[:2] == ["mended", "stays"]
    assert CHAIN not in done.stdout
