"""The ports of machines that users' containers can reach on the nodes' network."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from ipaddress import ip_address

import pytest

from minicluster_hub.cluster.firewall.rules import CHAIN
from minicluster_hub.cluster.plan.drafts import AGENTS_PORT, CACHE_PORT, REGISTRY_PORT

from ..cluster import LabCluster
from ..machines import Node
from ..machines.processes import wait_for
from ..people import People, text

_SWARM, _GOSSIP, _FILES, _DNS = 2377, 7946, 9000, 53
_NAME, _FOUND = "outside.example", "203.0.113.7"
ATTACK = """
import asyncio, json
async def opens(address, port):
    try:
        async with asyncio.timeout(3):
            reader, writer = await asyncio.open_connection(address, port)
        writer.close()
        return True
    except (OSError, TimeoutError):
        return False
async def reached(doors):
    found = await asyncio.gather(*(opens(*door) for door in doors))
    return [door for door, is_open in zip(doors, found) if is_open]
"""
CALLS_ALL = f"""
import socket
door = socket.socket(type=socket.SOCK_DGRAM)
door.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
door.settimeout(3)
for address in ("255.255.255.255", "172.18.255.255", "224.0.0.1"):
    door.sendto(b"anybody?", (address, {_FILES}))
try:
    answer = door.recv(99).decode()
except TimeoutError:
    answer = "nobody"
"""
IN_A_SERVER = ATTACK + "print(json.dumps(await reached({doors})))"
IN_A_JOB = (
    "%%distribute --nodes 3 --gather open_doors\n" + ATTACK + "open_doors = asyncio.run(reached({doors}))"
)

LOOKS_UP = f"%%distribute --nodes 3 --gather found\nimport socket\nfound = socket.gethostbyname('{_NAME}')"
SERVES = f"""
import asyncio, socket, sys
class Names(asyncio.DatagramProtocol):
    def connection_made(self, transport):
        self.transport = transport
    def datagram_received(self, asked, asker):
        question = asked[12 : asked.index(0, 12) + 5]
        labels = b"".join(bytes([len(label)]) + label.encode() for label in "{_NAME}".split("."))
        is_known = question == labels + bytes([0, 0, 1, 0, 1])
        head = asked[:2] + bytes([0x81, 0x80 if is_known else 0x83, 0, 1, 0, is_known, 0, 0, 0, 0])
        answer = bytes([0xC0, 12, 0, 1, 0, 1, 0, 0, 0, 1, 0, 4]) + socket.inet_aton("{_FOUND}")
        self.transport.sendto(head + question + answer * is_known, asker)
class Echo(asyncio.DatagramProtocol):
    def connection_made(self, transport):
        self.transport = transport
    def datagram_received(self, asked, asker):
        self.transport.sendto(asked, asker)
async def serve(name_server):
    await asyncio.get_running_loop().create_datagram_endpoint(Echo, ("0.0.0.0", {_FILES}))
    for port in ({_FILES}, {_DNS}):
        await asyncio.start_server(lambda reader, writer: writer.close(), "0.0.0.0", port)
    if name_server:
        await asyncio.get_running_loop().create_datagram_endpoint(Names, (name_server, {_DNS}))
    print("serves", flush=True)
    await asyncio.to_thread(sys.stdin.read)
asyncio.run(serve(sys.argv[1]))
"""


@dataclass(frozen=True)
class FileServer:
    """A file server on the last machine, at its address in a second network of all machines.

    name_server: the DNS server of the machines' containers, on the same machine; "": they use a resolver of
    their own machine, in the machine's own network.
    """

    node: Node
    address: str
    name_server: str


@pytest.fixture
def storage(cluster: LabCluster) -> Iterator[FileServer]:
    *others, last = nodes = cluster.lab.nodes
    lines = (line.split() for line in last.run("cat /etc/resolv.conf").stdout.splitlines())
    servers = [fields[1] for fields in lines if fields[:1] == ["nameserver"] and "." in fields[1]]
    made = FileServer(last, f"10.66.0.{last.number}", next((a for a in servers if not _loops(a)), ""))
    with ExitStack() as stack:
        for node in nodes:
            stack.enter_context(ip(node, "address", f"10.66.0.{node.number}/24", "dev", "eth0"))
        if made.name_server:
            stack.enter_context(ip(last, "address", f"{made.name_server}/32", "dev", "eth0"))
            for node in others:
                stack.enter_context(ip(node, "route", made.name_server, "via", last.address))
        command = last.machine.inside("python3", "-c", SERVES, made.name_server)
        server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        stack.callback(server.communicate)
        assert server.stdout and server.stdout.readline() == "serves\n"
        yield made


@contextmanager
def ip(node: Node, kind: str, *words: str) -> Iterator[None]:
    node.run(["ip", kind, "add", *words])
    try:
        yield
    finally:
        node.run(["ip", kind, "del", *words])


def _loops(address: str) -> bool:
    return ip_address(address).is_loopback


def denies(node: Node, address: str) -> bool:
    return any(
        CHAIN in rule and address in rule and "REJECT" in rule
        for rule in node.run(["iptables-save", "-t", "filter"]).stdout.splitlines()
    )


def doors_of_nodes(cluster: LabCluster) -> list[tuple[str, int]]:
    """Return the machines' addresses and ports that users must not reach."""
    manager = [(cluster.first.address, port) for port in (_SWARM, REGISTRY_PORT, CACHE_PORT)]
    return manager + [(node.address, _GOSSIP) for node in cluster.lab.nodes]


def opens_from_outside(cluster: LabCluster, doors: Iterable[tuple[str, int]]) -> bool:
    """Whether the machines themselves reach these ports; otherwise a blocked one would prove nothing."""
    probe = (
        "import socket, sys\nfor one in sys.argv[1:]: socket.create_connection(one.split(':'), 5).close()\n"
    )
    targets = [f"{address}:{port}" for address, port in doors]
    return cluster.first.run(["python3", "-c", probe, *targets], check=False).returncode == 0


async def test_neither_a_notebook_nor_a_job_reaches_the_machines_own_ports(
    cluster: LabCluster, people: People
) -> None:
    doors = doors_of_nodes(cluster)
    assert opens_from_outside(cluster, doors)
    async with people.at_work("mallory") as mallory, mallory.kernel() as kernel:
        output = text(await kernel.run(IN_A_SERVER.format(doors=doors)))
        assert json.loads(output.splitlines()[-1]) == []
        allowed = [(cluster.first.address, AGENTS_PORT), (cluster.first.address, 443)]
        output = text(await kernel.run(IN_A_SERVER.format(doors=allowed)))
        assert json.loads(output.splitlines()[-1]) == [list(door) for door in allowed]
        text(await kernel.run(IN_A_JOB.format(doors=doors)))
        assert await kernel.evaluate("open_doors") == "[[], [], []]"


async def test_nor_a_second_address_of_a_machine_nor_what_listens_where_names_are_asked_for(
    cluster: LabCluster, people: People, storage: FileServer
) -> None:
    doors = [(storage.address, _FILES), (storage.address, _DNS), (storage.node.address, _DNS)]
    assert opens_from_outside(cluster, doors)
    for node in cluster.lab.nodes:
        wait_for(lambda node=node: denies(node, storage.address), f"{node.name} to hear of it", 300, 1)
    async with people.at_work("mallory") as mallory, mallory.kernel() as kernel:
        text(await kernel.run(IN_A_JOB.format(doors=doors)))
        assert await kernel.evaluate("open_doors") == "[[], [], []]"
        text(await kernel.run(f"%%distribute --nodes 3 --gather answer\n{CALLS_ALL}"))
        assert await kernel.evaluate("answer") == str(["nobody"] * 3)
        if storage.name_server:  # names are still resolved
            text(await kernel.run(LOOKS_UP))
            assert await kernel.evaluate("found") == str([_FOUND] * 3)


def test_doctor_looks_whether_users_containers_are_kept_away(cluster: LabCluster) -> None:
    found = [one for one in cluster.doctor() if one["check"] == "firewall"]
    assert [one["level"] for one in found] == ["ok"] * 3, found
