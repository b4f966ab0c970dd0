"""The spawner's token on a real hub: only it may reserve slots for notebook servers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from minicluster_hub.launch.demo import SERVICE_PATH

from ..patience import WITHIN_S
from .clusters import RunningCluster

TOKEN = "0123456789abcdef0123456789abcdef"
CONFIG = f"""
from minicluster_hub.configure import configure
configure(c, spawner_token={TOKEN!r})
"""


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RunningCluster]:
    (tmp_path / "jupyterhub_config.py").write_text(CONFIG)
    monkeypatch.setenv("MINICLUSTER_TREE", str(tmp_path))
    started = RunningCluster(tmp_path / "data")
    try:
        yield started
    finally:
        started.end()
        started.kill()


@pytest.mark.full("tests/service/api/jobs/test_servers has it without a hub")
async def test_the_spawners_token_places_servers_and_does_nothing_else(cluster: RunningCluster) -> None:
    headers = {"Authorization": f"token {TOKEN}"}
    async with httpx.AsyncClient(
        base_url=cluster.url, headers=headers, trust_env=False, timeout=WITHIN_S
    ) as api:
        place = await api.put(f"{SERVICE_PATH}api/servers/ada/-", json={})
        assert (place.status_code, place.json()["node"]) == (httpx.codes.OK, "node-1")
        listed = (await api.get(f"{SERVICE_PATH}api/servers")).json()["servers"]
        assert [(server["owner"], server["server"]) for server in listed] == [("ada", "")]
        for path in (f"{SERVICE_PATH}api/jobs", f"{SERVICE_PATH}metrics", "/hub/api/users"):
            assert (await api.get(path)).status_code == httpx.codes.FORBIDDEN, path
        gone = await api.delete(f"{SERVICE_PATH}api/servers/ada/-")
        assert gone.status_code == httpx.codes.NO_CONTENT
