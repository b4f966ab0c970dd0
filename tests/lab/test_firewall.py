"""A user's containers against the machines: what they reach of the network that the nodes share."""

from __future__ import annotations

import json
from collections.abc import Iterable

from minicluster_hub.cluster.drafts import AGENTS_PORT, CACHE_PORT, REGISTRY_PORT

from .cluster import LabCluster
from .people import People, text

_SWARM, _GOSSIP = 2377, 7946
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
IN_A_SERVER = ATTACK + "print(json.dumps(await reached({doors})))"
IN_A_JOB = (
    "%%distribute --nodes 3 --gather open_doors\n" + ATTACK + "open_doors = asyncio.run(reached({doors}))"
)


def doors_of_nodes(cluster: LabCluster) -> list[tuple[str, int]]:
    """Return what listens on the machines and is nothing for users."""
    manager = [(cluster.first.address, port) for port in (_SWARM, REGISTRY_PORT, CACHE_PORT)]
    return manager + [(node.address, _GOSSIP) for node in cluster.lab.nodes]


def opens_from_outside(cluster: LabCluster, doors: Iterable[tuple[str, int]]) -> bool:
    """Whether these doors are open to the machines themselves: else nothing is shown by their being shut."""
    probe = (
        "import socket, sys\nfor one in sys.argv[1:]: socket.create_connection(one.split(':'), 5).close()\n"
    )
    words = [f"{address}:{port}" for address, port in doors]
    return cluster.first.run(["python3", "-c", probe, *words], check=False).returncode == 0


async def test_neither_a_notebook_nor_a_job_reaches_the_machines_own_ports(
    cluster: LabCluster, people: People
) -> None:
    doors = doors_of_nodes(cluster)
    assert opens_from_outside(cluster, doors)
    async with people.at_work("mallory") as mallory, mallory.kernel() as kernel:
        said = text(await kernel.run(IN_A_SERVER.format(doors=doors)))
        assert json.loads(said.splitlines()[-1]) == []
        allowed = [(cluster.first.address, AGENTS_PORT), (cluster.first.address, 443)]
        said = text(await kernel.run(IN_A_SERVER.format(doors=allowed)))
        assert json.loads(said.splitlines()[-1]) == [list(door) for door in allowed]
        text(await kernel.run(IN_A_JOB.format(doors=doors)))
        assert await kernel.ask("open_doors") == "[[], [], []]"


def test_doctor_looks_whether_users_containers_are_kept_away(cluster: LabCluster) -> None:
    said = cluster.command("doctor", "--json", check=False)
    found = [one for one in json.loads(said[said.index("[") :]) if one["check"] == "firewall"]
    assert [one["level"] for one in found] == ["ok"] * 3, found
