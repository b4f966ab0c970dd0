"""Ranks of one attempt end at different times: late ones still have the store."""

from __future__ import annotations

import asyncio

import pytest

from ..conftest import Start
from ..task_service import TaskService

LATE = """
import os, time
import torch.distributed as dist
print("began", flush=True)
if dist.get_rank() == 1:
    while not os.path.exists({gate!r}):
        time.sleep(0.05)
    dist.distributed_c10d._get_default_store().set("late", "yes")
    print("asked", flush=True)
"""


@pytest.mark.full("half a minute; tests/runtime/rank/test_endings has ends at different times")
async def test_the_store_outlives_its_own_rank(start: Start) -> None:
    """Even at the very end, when a rank waits for all others: a lost store would fill its log."""
    cluster = await start(2, TaskService())
    gate = cluster.folder / "gate"
    run = await cluster.run(LATE.format(gate=str(gate)), nodes=2)
    await run.started()
    await cluster.service.until(lambda: cluster.tasks[0].report.cleared == run.attempt.id)
    await asyncio.to_thread(gate.touch)
    attempt = await run.over()
    assert attempt.succeeded, run.errors()
    assert attempt.text(1) == "began\nasked\n"
    for task in attempt.tasks:
        await cluster.service.order(task, None)
    await cluster.check_idle()
