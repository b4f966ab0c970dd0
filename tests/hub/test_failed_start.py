"""A notebook server that does not start says why, also long after the page has answered."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx
import pytest

from minicluster_hub.launch.visitor import Visitor

from ..patience import WITHIN_S
from .clusters import RunningCluster

CONFIG = """
from minicluster_hub.configure import configure
configure(c)
c.ProcessSpawner.cmd = ["false"]
c.JupyterHub.tornado_settings = {"slow_spawn_timeout": 0}
"""


@pytest.mark.full("it starts a hub of its own; tests/unit/spawner has the sentences")
async def test_the_page_of_a_start_that_failed_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "jupyterhub_config.py").write_text(CONFIG)
    monkeypatch.setenv("MINICLUSTER_TREE", str(tmp_path))
    cluster = RunningCluster(tmp_path / "data")
    try:
        async with Visitor(cluster.url, "admin") as visitor:
            await visitor.log_in(cluster.password)
            await visitor.http.get("/hub/spawn/admin")
            page = await failed(visitor.http)
            assert "The notebook server ended at its start (exit code 1). Its log: " in page
    finally:
        cluster.end()
        cluster.kill()


async def failed(http: httpx.AsyncClient) -> str:
    """Return the page that a browser is sent to once the start has failed."""
    async with asyncio.timeout(WITHIN_S):
        while "has failed." not in (page := await http.get("/hub/user/admin/")).text:
            await asyncio.sleep(0.2)
    return page.text
