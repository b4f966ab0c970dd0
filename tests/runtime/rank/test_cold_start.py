"""Ranks whose zygote has imported what does not survive a fork: they start in a fresh Python."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from minicluster.runtime.rank import cold
from minicluster.wire.training.framework import Framework

from ..cluster import Cluster
from ..conftest import Start
from ..task_service import TaskService

HERE = """
import os, sys
fresh = "MINICLUSTER_FRESH_RANK" in os.environ
imported = "jaxlib" in sys.modules
print("a line")
result = int(os.environ["RANK"])
"""


@pytest.mark.parametrize(
    ("framework", "imported", "needed"),
    [
        (Framework.JAX, {"jax"}, True),
        (Framework.TENSORFLOW, {"tensorflow"}, True),
        (Framework.JAX, {"tensorflow"}, False),
        (Framework.TORCH, {"jax", "tensorflow"}, False),
        (Framework.NONE, {"jax"}, False),
    ],
)
def test_when_it_is_needed(framework: Framework, imported: set[str], needed: bool) -> None:
    assert cold.is_needed(framework, imported | {"torch"}) is needed


@pytest.fixture
def sites(tmp_path: Path) -> Path:
    """A folder on each Python's path whose sitecustomize imports a framework; here one without content."""
    (tmp_path / "sitecustomize.py").write_text("import jaxlib\n")
    (tmp_path / "jaxlib.py").write_text("")
    return tmp_path


async def test_a_cold_rank_is_a_rank_like_others(
    start: Start, sites: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", f"{sites}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    cluster: Cluster = await start(2, TaskService())
    more = {"nodes": 2, "pull": ("fresh", "imported", "result"), "gather": ("result",)}
    warm = await (await cluster.run(HERE, **more)).result()
    assert warm == {"fresh": False, "imported": True, "result": [0, 1]}
    run = await cluster.run(HERE, framework=Framework.JAX, **more)
    assert await run.result() == {"fresh": True, "imported": True, "result": [0, 1]}
    assert run.attempt.text(1) == "a line\n"


@pytest.mark.full("in the gate a warm one is stopped (tests/runtime/agent/test_stop)")
async def test_a_cold_rank_can_be_stopped(start: Start, sites: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", f"{sites}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    cluster: Cluster = await start(2, TaskService())
    run = await cluster.run("import time\nprint('here')\ntime.sleep(600)", nodes=2, framework=Framework.JAX)
    await run.started()
    await run.stop()
    assert (await run.over()).failed
