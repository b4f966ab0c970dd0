"""Data sets and their agents for tests: folders, pushes by the real client, agents as real processes."""

import asyncio
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from minicluster.client.client import JobServiceClient
from minicluster.datasets.folder import scan
from minicluster.datasets.push import Push

from ...patience import WITHIN_S

PIECES = "api/data-agents/pieces/{sha256}"


def make_folder(root, sizes, seed=0):
    """Write files of these sizes with different bytes; return the folder."""
    for path, size in sizes.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(random.Random(f"{seed} {path}").randbytes(size))
    return root


def contents(root):
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


async def push(api, folder, name, owner="ada", shared=None, tell=lambda now: None):
    """Push as `%distribute data push` does; return the data set and the push's final progress."""
    service = JobServiceClient(api.url, f"{owner}-token", retry_for_s=5)
    try:
        work = Push(scan(folder), service, tell)
        return await asyncio.to_thread(work.run, name, shared), work.so_far
    finally:
        service.close()


def count(api, method, path, status=200):
    """Return how many requests got this status."""
    labels = {"method": method, "path": path, "status": str(status)}
    return int(api.context.metrics.registry.get_sample_value("minicluster_requests_total", labels) or 0)


class DataAgentProcess:
    """A node's data set agent, as started by an engine."""

    def __init__(self, api, folder, nodes, limit_bytes=0):
        self.api = api
        folder.mkdir(exist_ok=True)
        self.home = folder
        (folder / "token").write_text(api.context.status_cache.data_set_tracker.tokens.file(nodes.split(",")))
        self.cache = folder / "cache"
        self._log = folder / "keeper.log"
        self._environ = {
            "PATH": os.environ["PATH"],
            "MINICLUSTER_SERVICE_URL": api.url,
            "MINICLUSTER_TOKEN_FILE": str(folder / "token"),
            "MINICLUSTER_KEEPER_NODES": nodes,
            "MINICLUSTER_DATA_CACHE": str(self.cache),
            "MINICLUSTER_DATA_CACHE_BYTES": str(limit_bytes),
        }
        self.start()

    def start(self):
        with self._log.open("ab") as log:
            command = [sys.executable, "-m", "minicluster.runtime.node.data_agent"]
            self.process = subprocess.Popen(command, env=self._environ, stdout=log, stderr=log)

    def kill(self):
        self.process.kill()
        self.process.wait(10)

    def folder(self, run, name):
        return Path(self.cache, "sets", run.data[name])

    @property
    def log(self):
        return self._log.read_text()

    async def order(self, job):
        """Return a job's first agent and its run order, which arrives once the data is ready."""
        agents = await self.api.agents(job.id)
        async with asyncio.timeout(WITHIN_S):
            return agents[0], await agents[0].run_order()


@contextmanager
def with_room(folder: Path) -> Iterator[Path]:
    """Yield this folder, or one in memory if its disk is nearly full: an agent leaves 5 % of a disk free."""
    disk = shutil.disk_usage(folder.parent)
    if disk.free > disk.total * 0.06:
        yield folder
        return
    with tempfile.TemporaryDirectory(prefix="minicluster-test-", dir="/dev/shm") as made:
        yield Path(made)


@asynccontextmanager
async def a_data_agent(api, folder, nodes="node-1,node-2,node-3", limit_bytes=0):
    with with_room(folder) as home:
        made = DataAgentProcess(api, home, nodes, limit_bytes)
        try:
            yield made
        finally:
            made.kill()
