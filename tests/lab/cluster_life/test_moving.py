"""From a Swarm to one machine by the documented commands: password, jobs, data set and home go along."""

from __future__ import annotations

from pathlib import Path

import pytest

from minicluster_hub.launch.demo import SERVICE_PATH
from minicluster_hub.launch.kernel import open_kernel
from minicluster_hub.launch.visitor import Visitor

from ... import moving, scenarios
from ...hub.clusters import RunningCluster
from ..cluster import UP_WITHIN_S, LabCluster
from ..people import text
from .test_up import fresh as fresh
from .test_up import machines as machines

CELL = "%%distribute --nodes 1 --name before\nprint('in the Swarm')"


async def work(cluster: LabCluster, password: str) -> int:
    """Have Ada push a data set and run a job; return the job's id."""
    async with cluster.person("ada", password) as ada:
        await ada.start_server()
        async with ada.kernel() as kernel:
            text(await kernel.run(scenarios.PUSH))
            text(await kernel.run(CELL))
        (job,) = (await ada.ask("api/jobs"))["jobs"]
        await ada.stop_server()
    return int(job["id"])


async def check(url: str, password: str, job: int) -> None:
    """Check that Ada has everything there."""
    async with Visitor(url, "ada") as ada:
        await ada.log_in(password)
        await ada.start_server()
        await ada.http.get(SERVICE_PATH)
        found = await ada.call("GET", f"{SERVICE_PATH}api/jobs/{job}", SERVICE_PATH)
        assert (found["state"], found["name"]) == ("succeeded", "before")
        log = await ada.http.get(f"{SERVICE_PATH}api/jobs/{job}/log", params={"rank": 0})
        assert "in the Swarm" in log.text
        async with open_kernel(ada, scenarios.NOTEBOOK) as kernel:
            assert await kernel.evaluate("open('words/one.txt').read()") == "'one of them'"
            text(await kernel.run(scenarios.READ))
            assert await kernel.evaluate("read") == "'one of them'"


@pytest.mark.apart("it makes machines of its own")
async def test_users_jobs_data_sets_and_homes_leave_a_swarm(
    fresh: LabCluster, tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fresh.up()
    password = fresh.add_user("ada")
    job = await work(fresh, password)
    image, data = fresh.images.hub, tmp_path / "data"
    for commands in (moving.home_commands(tree, image), moving.backup_commands(tree, image)):
        fresh.first.run(["bash", "-euc", f"cd {tmp_path}\n{commands}"], within_s=UP_WITHIN_S)
    moving.unpack(tree, tmp_path, data, data / "homes" / "ada")
    monkeypatch.setenv("MINICLUSTER_TREE", str(tree))
    after = RunningCluster(data)
    try:
        await check(after.url, password, job)
        assert after.end() == 0
    finally:
        after.kill()
