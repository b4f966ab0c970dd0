"""Twenty simultaneous requests for GPUs, by notebook servers and jobs: no GPU is assigned twice."""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field

import httpx
import pytest

from minicluster_hub.launch.demo import SERVICE_PATH
from minicluster_hub.launch.visitor import Visitor

from ... import messages
from ...hub.jobs import submit
from ..behind import Container, containers, query
from ..cluster import LabCluster
from ..conftest import GPUS_PER_NODE
from ..remains import check_nothing_left, wait_none

OWNERS = [f"owner{number}" for number in range(6)]
JOBS = 14
NODES = (1, 2, 3, 1)
"""Sizes of the jobs in turn; each of four owners has jobs of one size, so that some reuse a warm gang."""
JOB = "import os, time\nassert os.environ['DOCKER_RESOURCE_GPU']\ntime.sleep(0.5)\n"
REFUSED = re.compile(
    rf"{messages.NO_NODE_HAS}: \d GPUs? .* held by .*Try again later|were not given back", re.I
)
HELD = """SELECT 'task ' || id, node, slots FROM tasks WHERE state != 'ended'
UNION ALL SELECT 'server of ' || owner, node, slots FROM servers"""
STATES = "SELECT state FROM jobs WHERE owner LIKE 'owner%'"
LOOK_S = 0.5
USE_S = 3.0


@pytest.fixture
def with_gpus(cluster: LabCluster) -> Iterator[LabCluster]:
    """The cluster with GPUs for servers, and gangs that stay warm for 2 s; both are undone afterwards."""
    output = cluster.up("--server-gpus=1", "--service-option=--MiniclusterHub.keep_warm_s=2")
    assert re.search(r"service .*\(changed\)", output) and re.search(r"registry .*\(unchanged\)", output), (
        output
    )
    yield cluster
    cluster.up("--server-gpus=0")


@dataclass
class Watch:
    """Repeatedly compares the containers' GPUs with the slots in the database."""

    cluster: LabCluster
    most_at_once: int = 0
    roles: set[str] = field(default_factory=set)

    async def run(self) -> None:
        while True:
            await asyncio.to_thread(self.check)
            await asyncio.sleep(LOOK_S)

    def check(self) -> None:
        """Check that no GPU and no slot has two holders now."""
        holders = [one for one in containers(self.cluster.lab) if one.gpus and one.role != "server"]
        given = Counter(gpu for container in holders for gpu in container.gpus)
        assert not given or max(given.values()) == 1, describe(holders)
        rows = query(self.cluster, HELD)[0]
        held = Counter((node, slot) for _, node, slots in rows for slot in json.loads(slots))
        assert not held or max(held.values()) == 1, rows
        assert all(0 <= slot < GPUS_PER_NODE for _, slot in held), rows
        self.most_at_once = max(self.most_at_once, len(given))
        self.roles |= {container.role for container in holders}


def describe(holders: list[Container]) -> str:
    return "\n".join(f"{one.node} {one.role} {one.owner}: {', '.join(one.gpus)}" for one in holders)


@dataclass(frozen=True)
class Owner:
    """A user of the REST API with a token of the hub."""

    name: str
    http: httpx.AsyncClient

    @classmethod
    async def new(cls, cluster: LabCluster, name: str) -> Owner:
        password = await asyncio.to_thread(cluster.add_user, name)
        async with Visitor(cluster.url, name, verify=False) as visitor:
            await visitor.log_in(password)
            made = await visitor.call("POST", f"/hub/api/users/{name}/tokens", "/hub/", json={})
        headers = {"Authorization": f"token {made['token']}"}
        http = httpx.AsyncClient(
            base_url=cluster.url + SERVICE_PATH, headers=headers, verify=False, trust_env=False, timeout=120
        )
        return cls(name, http)

    @property
    def _server(self) -> str:
        return f"/hub/api/users/{self.name}/server"

    async def use_server(self) -> str:
        """Start a server with a GPU, use it and stop it; return "used", or why it did not start."""
        refusal = await self._start_server()
        if refusal:
            return refusal
        await asyncio.sleep(USE_S)
        assert (await self.hub("DELETE", self._server)).status_code in (202, 204)
        return "used"

    async def _start_server(self) -> str:
        while True:
            answer = await self.hub("POST", self._server, json={"user_options": {"gpus": 1}})
            if answer.status_code != httpx.codes.TOO_MANY_REQUESTS:  # the hub starts ten at a time
                break
            await asyncio.sleep(1)
        if answer.status_code != httpx.codes.ACCEPTED:
            return "" if answer.status_code == httpx.codes.CREATED else answer.json()["message"]
        followed = await self.hub("GET", f"{self._server}/progress")
        last = [json.loads(line[5:]) for line in followed.text.splitlines() if line.startswith("data:")][-1]
        return "" if last.get("ready") else last["message"]

    async def hub(self, method: str, path: str, **more: object) -> httpx.Response:
        url = self.http.base_url.copy_with(path=path)
        return await self.http.request(method, url, **more)  # pyright: ignore[reportArgumentType]

    async def send_job(self, nodes: int) -> int:
        """Submit a job, as a notebook does: again while the hub is too busy to say who asks."""
        while (answer := await submit(self.http, JOB, nodes)).status_code == httpx.codes.SERVICE_UNAVAILABLE:
            await asyncio.sleep(1)
        return answer.status_code


@pytest.mark.alone("twenty requests at once are load enough: servers took 95 s to start beside other parts")
async def test_no_gpu_is_given_twice_under_twenty_requests_at_once(with_gpus: LabCluster) -> None:
    cluster, watch = with_gpus, Watch(with_gpus)
    owners = await asyncio.gather(*(Owner.new(cluster, name) for name in OWNERS))
    watching = asyncio.create_task(watch.run())
    servers = [asyncio.create_task(owners[0].use_server())]
    while await asyncio.to_thread(query, cluster, HELD) == [
        []
    ]:  # start one server first, since jobs could take all GPUs
        await asyncio.sleep(0.1)
    servers += [asyncio.create_task(owner.use_server()) for owner in owners[1:]]
    jobs = asyncio.gather(*(owners[n % 4].send_job(NODES[n % 4]) for n in range(JOBS)))
    assert await jobs == [httpx.codes.CREATED] * JOBS
    answers = await asyncio.gather(*servers)
    while await asyncio.to_thread(open_jobs, cluster):
        assert not watching.done(), watching.exception()
        await asyncio.sleep(LOOK_S)
    watching.cancel()
    with suppress(asyncio.CancelledError):
        await watching
    print(Counter(answers), watch)
    assert not [text for text in answers if text != "used" and not REFUSED.search(text)], answers
    assert Counter(state for (state,) in query(cluster, STATES)[0]) == {"succeeded": JOBS}
    assert watch.roles == {"gpus", "task"} and "used" in answers
    assert watch.most_at_once == GPUS_PER_NODE * len(cluster.lab.nodes)
    wait_none(lambda: query(cluster, HELD)[0], "slots are held")
    check_nothing_left(cluster)
    assert not cluster.remains()
    for owner in owners:
        await owner.http.aclose()


def open_jobs(cluster: LabCluster) -> bool:
    over = {"succeeded", "failed", "stopped"}
    return any(state not in over for (state,) in query(cluster, STATES)[0])
