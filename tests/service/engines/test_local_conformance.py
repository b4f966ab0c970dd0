"""The engine `local` passes the suite for engines, with real processes."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from minicluster_hub.engines.local.engine import AGENT_MODULE, LocalEngine
from minicluster_hub.support.processes import (
    DATA_LABEL,
    TASK_LABEL,
    find,
    labelled,
    of_data_folder,
    signal_all,
    wait_gone,
)

from .conformance import EngineConformance, EngineHarness

AGENT = """
import subprocess, sys, time
subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], start_new_session=True)
time.sleep(600)
"""


class StayingEngine(LocalEngine):
    """An engine whose agents run without a job service; each has a child in its own session, as ranks may."""

    def _command(self) -> list[str]:
        return [sys.executable, "-c", AGENT, AGENT_MODULE]


class LocalHarness(EngineHarness):
    nodes = ("node-1", "node-2", "node-3")
    nodes_go_down = False

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def make(self) -> StayingEngine:
        return StayingEngine(data_dir=str(self.folder), devices="cpu")

    def _processes(self, task_id: int) -> list[psutil.Process]:
        return find(labelled(**{DATA_LABEL: str(self.folder), TASK_LABEL: str(task_id)}))

    def _agents(self, task_id: int) -> list[psutil.Process]:
        return [one for one in self._processes(task_id) if AGENT_MODULE in one.cmdline()]

    def agents(self, task_id: int) -> int:
        return len(self._agents(task_id))

    def kill_agent(self, task_id: int) -> None:
        signal_all(self._agents(task_id))

    def shown(self, task_id: int) -> str:
        found = self._processes(task_id)
        return "\n".join(f"{one.environ()} {one.cmdline()}" for one in found)

    def lose(self, node: str) -> None:
        """Kill all processes of a virtual node, since it is no machine that could be lost."""
        found = find(labelled(**{DATA_LABEL: str(self.folder), "MINICLUSTER_NODE": node}))
        signal_all(found)
        wait_gone(found, 10)

    def bring_back(self, node: str) -> None:
        pass

    def leftovers(self) -> list[str]:
        files = [path for kind in ("tasks", "lighthouses") for path in (self.folder / kind).glob("*")]
        return [*map(str, find(of_data_folder(self.folder))), *map(str, files)]


class TestLocal(EngineConformance):
    @pytest.fixture
    def harness(self, tmp_path: Path) -> Iterator[LocalHarness]:
        yield LocalHarness(tmp_path)
        left = find(of_data_folder(tmp_path))
        with suppress(psutil.NoSuchProcess):
            signal_all(left)
        assert not left, "a test left processes"
