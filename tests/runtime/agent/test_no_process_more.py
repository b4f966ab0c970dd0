"""Ranks use up their container's process limit: the agent can still reach the service."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from ...patience import eventually
from ..conftest import Start
from ..task_service import TaskService

COUNTED = Path("/sys/fs/cgroup/pids")


class Named(TaskService):
    """A service reached by name, as in a cluster: each new connection resolves it."""

    @property
    def url(self) -> str:
        return super().url.replace("127.0.0.1", "localhost")


@pytest.fixture
async def group() -> AsyncIterator[Path]:
    """A control group with its own process limit; it must be empty at the end."""
    if not os.access(COUNTED, os.W_OK):
        pytest.skip("needs root, and the cgroup controller that counts processes")
    folder = COUNTED / f"minicluster-test-{os.getpid()}"
    folder.mkdir()
    yield folder
    (folder / "pids.max").write_text("max")
    await eventually(lambda: _is_removed(folder))


def _is_removed(folder: Path) -> bool:
    """Move all processes out of a control group, and remove it. The agent may start some meanwhile."""
    try:
        for pid in (folder / "cgroup.procs").read_text().split():
            (COUNTED / "cgroup.procs").write_text(pid)
        folder.rmdir()
    except OSError:
        return False
    return True


@pytest.mark.full("a rare fault")
async def test_an_agent_connects_again_when_no_thread_can_be_started(
    start: Start, group: Path, tmp_path: Path
) -> None:
    cluster = await start(1, Named())
    enough = tmp_path / "enough"
    source = f"""
        import os, time
        print("here")
        while not os.path.exists({str(enough)!r}):
            time.sleep(0.05)
        done = True
        """
    run = await cluster.run(source, nodes=1)
    await run.started()
    for pid in (cluster.agents[0].pid, *cluster.processes(0)):
        (group / "cgroup.procs").write_text(str(pid))
    (group / "pids.max").write_text("1")
    # One for each of two simultaneous look-ups of the service's name, and two for files.
    assert len(list(Path(f"/proc/{cluster.agents[0].pid}/task").iterdir())) >= 1 + 4
    await cluster.service.close()
    await asyncio.sleep(3.0)  # both of the agent's requests are retried, with simultaneous look-ups
    await cluster.service.open()
    before = cluster.tasks[0].reports
    await eventually(lambda: cluster.tasks[0].reports > before + 2 or cluster.agents[0].poll() is not None)
    (group / "pids.max").write_text("max")
    enough.touch()
    assert (await run.result())["done"] is True
