"""A served model on three hosts: its replicas are on two nodes, of which one loses its power."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx

from minicluster_hub.launch.demo import SERVICE_PATH

from ..cluster import LabCluster, Person
from ..machines import Node
from ..people import People, text
from .inject import power_lost

SERVE = """import torch
torch.manual_seed(0)
model = torch.nn.Linear(4, 2)
x = torch.ones(1, 4)
%serve model --name lines --example x --replicas 2 --timeout 20s"""
WITHIN_S = 240


async def test_a_model_outlives_a_node_and_loses_no_request(cluster: LabCluster, people: People) -> None:
    async with people.at_work("lina", node=cluster.first.name) as lina, lina.kernel() as kernel:
        text(await kernel.run(SERVE))
        token = (await kernel.evaluate("__import__('os').environ['JUPYTERHUB_API_TOKEN']")).strip("'")
        expected = await kernel.evaluate("model(x).tolist()")
        try:
            found = await until_ready(lina, 2)
            nodes = {one["node"] for one in found["replicas"]}
            assert len(nodes) == 2, found
            assert found["front"] == "HAProxy"
            await loses_none(cluster, lina, token, nodes)
            assert str(await asks(cluster, token)) == expected
        finally:
            text(await kernel.run("%serve stop lines"))
        await ended(lina)


async def loses_none(cluster: LabCluster, lina: Person, token: str, nodes: set[str]) -> None:
    """Take the power from a node with a replica while four clients ask; another node gets a new replica."""
    victim = next(node for node in cluster.lab.nodes[1:] if node.name in nodes)
    over, statuses = asyncio.Event(), list[int]()
    clients = [asyncio.create_task(asks_on(cluster, token, over, statuses)) for _ in range(4)]
    try:
        with power_lost(cluster, victim):
            await until_ready(lina, 2, but=victim)
    finally:
        over.set()
        await asyncio.gather(*clients)
    assert len(statuses) > 20
    assert set(statuses) == {httpx.codes.OK}


async def asks_on(cluster: LabCluster, token: str, over: asyncio.Event, statuses: list[int]) -> None:
    async with client(cluster, token) as http:
        while not over.is_set():
            statuses.append((await http.post("predict", json=[[1, 1, 1, 1]])).status_code)
            await asyncio.sleep(0.05)


async def asks(cluster: LabCluster, token: str) -> Any:
    async with client(cluster, token) as http:
        return (await http.post("predict", json=[[1, 1, 1, 1]])).json()


def client(cluster: LabCluster, token: str) -> httpx.AsyncClient:
    headers = {"Authorization": f"Bearer {token}"}
    url = f"{cluster.url}{SERVICE_PATH}answers/lina/lines/"
    return httpx.AsyncClient(base_url=url, headers=headers, verify=False, trust_env=False, timeout=60)


async def until_ready(lina: Person, replicas: int, but: Node | None = None) -> dict[str, Any]:
    """Wait until so many replicas answer, none of them on a node; return the model."""
    (model,) = [one for one in (await lina.ask("api/models"))["models"] if one["state"] != "stopped"]
    async with asyncio.timeout(WITHIN_S):
        while True:
            found = await lina.ask(f"api/models/{model['id']}")
            ready = [one for one in found["replicas"] if one["phase"] == "ready"]
            if len(ready) == replicas and (but is None or but.name not in {one["node"] for one in ready}):
                return found
            await asyncio.sleep(0.3)


async def ended(lina: Person) -> None:
    async with asyncio.timeout(WITHIN_S):
        while any(one["state"] != "stopped" for one in (await lina.ask("api/models"))["models"]):
            await asyncio.sleep(0.3)
