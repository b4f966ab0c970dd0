"""An agent whose ranks have half a GPU: it waits for MPS, and runs nothing without it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio

from minicluster.wire import ErrorKind
from minicluster.wire.machines.gpu_share import MPS_FAILED, MPS_READY, share_environment

from ..cluster import Cluster
from ..task_service import TaskService


@pytest_asyncio.fixture(loop_scope="session")
async def light(tmp_path: Path) -> AsyncIterator[Cluster]:
    """An agent with half a GPU, whose daemon has not answered yet."""
    service = TaskService()
    await service.open()
    (tmp_path / "mps").mkdir()
    cluster = Cluster(service, tmp_path / "light", share_environment(str(tmp_path / "mps")))
    cluster.start_agent()
    yield cluster
    await cluster.close()
    await service.close()


async def test_ranks_start_once_the_daemon_limits_memory_and_know_their_share(
    light: Cluster, tmp_path: Path
) -> None:
    (task,) = light.tasks
    await light.service.until(lambda: task.report.address)
    assert not task.report.ready
    (tmp_path / "mps" / MPS_READY).touch()
    await light.service.until(lambda: task.report.ready)
    run = await light.run(
        """
        import os
        share, pipes = os.environ["MINICLUSTER_GPU_SHARE"], os.environ["CUDA_MPS_PIPE_DIRECTORY"]
        """,
        nodes=1,
    )
    found = await run.result()
    assert (found["share"], found["pipes"]) == ("0.5", str(tmp_path / "mps"))


async def test_a_card_that_cannot_be_shared_fails_the_task_with_the_reason(
    light: Cluster, tmp_path: Path
) -> None:
    (tmp_path / "mps" / MPS_FAILED).write_text("its compute capability 6.1 is below 7.0 (Volta)")
    (task,) = light.tasks
    await light.service.until(lambda: task.report.failure)
    failure = task.report.failure
    assert failure is not None and failure.kind is ErrorKind.START
    assert "the GPU cannot be shared: its compute capability 6.1" in failure.message
