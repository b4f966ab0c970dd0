"""The data of a cluster on another engine goes on with Slurm: users, jobs, data sets and homes."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from minicluster_hub.launch.demo import SERVICE_PATH
from minicluster_hub.launch.kernel import open_kernel
from minicluster_hub.launch.visitor import Visitor
from minicluster_hub.support.processes import find, of_data_folder, signal_all

from .. import moving, scenarios
from ..hub.clusters import RunningCluster
from .daemons import SlurmDaemons
from .hub import SlurmSite, given_back, running


async def at_work(visitor: Visitor, password: str) -> None:
    await visitor.log_in(password)
    await visitor.start_server()
    await visitor.http.get(SERVICE_PATH)


def pack(data: Path, folder: Path) -> None:
    """Pack a data folder as the two volumes of a Swarm are packed, and Ada's home."""
    volumes = folder / "volumes"
    (volumes / "hub").mkdir(parents=True)
    (volumes / "service").mkdir()
    for name in ("passwords.json", "hub"):
        (data / name).rename(volumes / "hub" / name)
    (data / "service").rename(volumes / "service" / "service")
    tar = ["tar", "-czf"]
    archive = [*tar, folder / moving.ARCHIVE, "-C", volumes, "hub", "service"]
    home = [*tar, folder / moving.HOME_ARCHIVE, "-C", data / "homes" / "ada", "."]
    for words in (archive, home):
        subprocess.run(words, check=True)


async def test_users_jobs_data_sets_and_homes_move_by_the_documented_commands(
    slurm: SlurmDaemons, tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MINICLUSTER_TREE", str(tree))
    before = RunningCluster(tmp_path / "before")
    after = None
    try:
        password = before.add_user("ada")
        async with Visitor(before.url, "ada") as ada:
            await at_work(ada, password)
            site = SlurmSite(slurm, ada)
            await scenarios.data_set(site)
            job = (await scenarios.newest_job(site))["id"]
        assert before.end() == 0
        pack(before.data, tmp_path)
        moving.unpack(tree, tmp_path, tmp_path / "data", tmp_path / "data" / "homes" / "ada")
        monkeypatch.setenv("MINICLUSTER_TREE", str(tmp_path))
        after = running(slurm, tmp_path)
        async with Visitor(after.url, "ada") as ada:
            await at_work(ada, password)
            site = SlurmSite(slurm, ada)
            assert (await scenarios.ask(site, "GET", f"api/jobs/{job}"))["state"] == "succeeded"
            async with open_kernel(ada, scenarios.NOTEBOOK) as kernel:
                assert await kernel.evaluate("open('words/one.txt').read()") == "'one of them'"
                scenarios.text(await kernel.run(scenarios.READ))
                assert await kernel.evaluate("read") == "'one of them'"
            assert set((await scenarios.newest_job(site))["nodes"]) == set(site.nodes)
            await given_back(slurm)
        assert after.end() == 0
    finally:
        for cluster in filter(None, (before, after)):
            cluster.kill()
        signal_all(find(of_data_folder(tmp_path / "shared")))
