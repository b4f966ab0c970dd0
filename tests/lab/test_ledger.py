"""GPUs are counted once: fifty requests at the same time, notebook servers and jobs, one ledger."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from minicluster_hub.launch.demo import SERVICE_PATH
from minicluster_hub.launch.visitor import Visitor

from ..hub.jobs import submit
from .behind import Container, check_nothing_left, containers, query
from .cluster import LabCluster
from .conftest import GPUS_PER_NODE

OWNERS = [f"owner{number}" for number in range(16)]
JOBS_PER_OWNER = 2
TWICE = [f"owner{number}" for number in range(2)]
NODES_OF_JOBS = (1, 2, 3)
JOB = "import os, time\nassert os.environ['DOCKER_RESOURCE_GPU']\ntime.sleep(0.5)\n"
REFUSED = re.compile(r"GPU.*(job \d+ of owner\d+|notebook server of owner\d+).*Try again later", re.DOTALL)
BUSY = {httpx.codes.TOO_MANY_REQUESTS}
SLOTS = "SELECT node, slot, task_id, server_id FROM leases"
LOOK_S = 0.5


class Watch:
    """Looks again and again at what the engines gave out and at what the ledger says."""

    def __init__(self, cluster: LabCluster) -> None:
        self._cluster = cluster
        self.most_at_once = 0
        self.roles: set[str] = set()

    async def run(self) -> None:
        while True:
            await asyncio.to_thread(self.look)
            await asyncio.sleep(LOOK_S)

    def look(self) -> list[Container]:
        """Check that no GPU and no slot has two holders just now; return who holds GPUs."""
        holders = [container for container in containers(self._cluster.lab) if container.gpus]
        given = Counter(gpu for container in holders for gpu in container.gpus)
        assert not [gpu for gpu, count in given.items() if count > 1], describe(holders)
        (leases,) = query(self._cluster, SLOTS)
        held = Counter((node, slot) for node, slot, *_ in leases)
        assert max(held.values(), default=1) == 1, leases
        assert all(0 <= slot < GPUS_PER_NODE for _, slot in held), leases
        self.most_at_once = max(self.most_at_once, len(given))
        self.roles |= {container.role for container in holders}
        return holders


def describe(holders: list[Container]) -> str:
    return "\n".join(f"{one.node} {one.role} {one.owner}: {', '.join(one.gpus)}" for one in holders)


@pytest.fixture
def with_gpus(cluster: LabCluster) -> AsyncIterator[None]:
    """Notebook servers may have a GPU, as an option of a second `up` says; a third one takes it back."""
    said = cluster.up("--server-gpus", "1")
    assert re.search(r"service .*\(changed\)", said) and re.search(r"registry .*unchanged", said), said
    yield
    cluster.up("--server-gpus", "0")


@asynccontextmanager
async def tokens(cluster: LabCluster) -> AsyncIterator[dict[str, str]]:
    """A token of each owner, for the hub and for the job service; they are users of the cluster."""
    found: dict[str, str] = {}
    for name in OWNERS:
        password = cluster.add_user(name)
        async with Visitor(cluster.url, name, verify=False) as visitor:
            await visitor.log_in(password)
            made = await visitor.call("POST", f"/hub/api/users/{name}/tokens", "/hub/", json={})
            found[name] = made["token"]
    yield found
