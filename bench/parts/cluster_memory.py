"""Memory of hub, proxy and job service, with one user and with many users and jobs."""

from __future__ import annotations

import asyncio
from typing import Any

import idle
from notebook import Cluster, Notebook
from parts.cluster_lab import KNOWN, BenchCluster

SERVERS, JOBS = 50, 20
AT_ONCE = 5
SERVER_WITHIN_S = 180
SETTLE_S = 15.0
PARTS = {"hub": "hub", "service": "job service", "proxy": "proxy"}
COUNTED = ("hub", "job service")
LONG_JOB = "%%distribute --detach --nodes 3 --gpus-per-node 2 --pull none\nimport time; time.sleep(3600)"
Memory = dict[str, float]


async def measure_memory(cluster: BenchCluster, notebook: Notebook) -> tuple[Memory, Memory]:
    """Return each part's resident MB before and after the servers start and the jobs queue."""
    before = resident_mb(cluster)
    await _start_servers(notebook)
    for _ in range(JOBS):
        await notebook.run(LONG_JOB)
    jobs = (await notebook.ask_service(f"api/jobs?limit={JOBS}"))["jobs"]
    if (waiting := sum(job["state"] == "queued" for job in jobs)) < JOBS - 1:
        raise SystemExit(f"{waiting} of {JOBS} jobs wait: {[job['state'] for job in jobs]}")
    await asyncio.sleep(SETTLE_S)
    return before, resident_mb(cluster)


def resident_mb(cluster: BenchCluster) -> Memory:
    """Return the resident memory of all processes in each part's container."""
    found = {}
    for role, part in PARTS.items():
        (container,) = cluster.docker("ps", "--quiet", f"--filter=label=org.minicluster.role={role}")
        _, *lines = cluster.docker("top", container, "-o", "pid,rss")
        found[part] = sum(int(line.split()[1]) for line in lines) * 1024 / 1e6
    return found


async def local_mb(local: Cluster) -> Memory:
    """Return the resident memory of each part of the cluster on one machine."""
    costs = await idle.measure(local.hub.settings.data_dir, window_s=0.5)
    return {part: costs[part].rss_mb for part in PARTS.values()}


def counted_mb(memory: Memory) -> float:
    """Return the sum of hub and job service, without the proxy, which runs on Node.js and hardly grows."""
    return sum(memory[part] for part in COUNTED)


async def _start_servers(notebook: Notebook) -> None:
    """Start many users' servers, a few at a time, as the first user, who is an administrator."""
    visitor = notebook.visitor
    names = [f"{KNOWN}{number:02}" for number in range(SERVERS)]
    await visitor.http.get("/hub/home")
    await visitor.call("POST", "/hub/api/users", "/hub/", json={"usernames": names})
    gate = asyncio.Semaphore(AT_ONCE)

    async def start(name: str) -> None:
        address = f"/hub/api/users/{name}"
        async with gate, asyncio.timeout(SERVER_WITHIN_S):
            await visitor.call("POST", f"{address}/server", "/hub/", json={})
            while True:
                if _is_ready(await visitor.call("GET", address, "/hub/")):
                    return
                await asyncio.sleep(0.5)

    await asyncio.gather(*map(start, names))


def _is_ready(user: dict[str, Any]) -> bool:
    server = user["servers"].get("")
    if server is None:
        raise SystemExit(f"the server of {user['name']} did not start: see the hub's log")
    return server["ready"]
