"""Agents whose service fails, and agents that are killed."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest
from tornado.web import HTTPError

from minicluster.wire import ReportAnswer, TaskReport

from ...patience import eventually
from ..cluster import Cluster
from ..conftest import Start
from ..task_service import Task, TaskService

TICKING = """
    import time, torch, torch.distributed as dist
    for step in range(30):
        dist.all_reduce(torch.ones(1))
        print("step", step)
        time.sleep(0.1)
    done = True
    """
STEPS = "".join(f"step {step}\n" for step in range(30))


class Refuses(TaskService):
    """Stores each report, but answers every second one with 503."""

    async def answer(self, task: Task, report: TaskReport) -> ReportAnswer:
        answer = await super().answer(task, report)
        if task.reports % 2:
            raise HTTPError(503)
        return answer


class Forgets(TaskService):
    """Loses the second half of each stream once, as after a restore from a backup."""

    forgotten = False

    def keep(self, report: TaskReport) -> dict[str, int]:
        sizes = super().keep(report)
        attempt = self.attempts.get(report.attempt or 0)
        if attempt and sizes.get("rank-0", 0) > 100 and not self.forgotten:
            self.forgotten = True
            del attempt.streams["rank-0"][50:]
        return {name: len(attempt.streams[name]) for name in sizes} if attempt else {}


async def test_training_goes_on_while_the_service_is_away(cluster: Cluster) -> None:
    run = await cluster.run(TICKING)
    await run.started()
    await cluster.service.close()
    await asyncio.sleep(3.0)
    await cluster.service.open()
    assert (await run.result())["done"] is True
    assert [run.attempt.text(rank) for rank in range(3)] == [STEPS] * 3


async def test_reports_are_repeated_until_they_are_heard(start: Start) -> None:
    cluster = await start(1, Refuses())
    run = await cluster.run(TICKING, nodes=1)
    assert (await run.result())["done"] is True
    assert run.attempt.text(0) == STEPS


async def test_output_is_sent_again_when_the_service_has_lost_some(start: Start) -> None:
    cluster = await start(1, Forgets())
    run = await cluster.run(TICKING, nodes=1)
    await run.result()
    assert cluster.service.forgotten
    assert run.attempt.text(0) == STEPS


async def test_a_killed_agent_takes_everything_with_it(start: Start) -> None:
    cluster = await start(1, TaskService())
    run = await cluster.run("import time\nprint('here')\ntime.sleep(600)", nodes=1, ranks_per_node=2)
    await run.started()
    os.kill(cluster.agents[0].pid, signal.SIGKILL)
    cluster.agents[0].wait()
    await nothing_left(cluster)


@pytest.mark.full("in the gate a killed agent takes its ranks with it")
async def test_an_agent_whose_task_is_over_ends_its_ranks_and_itself(start: Start) -> None:
    cluster = await start(1, TaskService())
    run = await cluster.run("import time\nprint('here')\ntime.sleep(600)", nodes=1)
    await run.started()
    cluster.tasks[0].over = True
    await cluster.service.send_notices()
    await nothing_left(cluster)
    assert cluster.agents[0].wait() == 0


@pytest.mark.full("a rare fault")
async def test_a_killed_zygote_is_told(start: Start) -> None:
    cluster = await start(1, TaskService())
    run = await cluster.run("import os, time\nprint(os.getppid())\ntime.sleep(600)", nodes=1)
    await run.started()
    os.kill(int(run.attempt.text(0)), signal.SIGKILL)
    await cluster.service.until(lambda: run.errors() and cluster.tasks[0].report.failure)
    failure = cluster.tasks[0].report.failure
    assert failure and "node-0" in failure.message
    assert not cluster.tasks[0].report.ready


async def test_an_attempt_that_is_not_wanted_any_more_is_dropped(cluster: Cluster) -> None:
    old = await cluster.run("import time\nprint('here')\ntime.sleep(600)")
    await old.started()
    for task in cluster.tasks:
        await cluster.service.order(task, None)
    await old.over()
    new = await cluster.run("done = True", nodes=1)
    assert (await new.result())["done"] is True


async def test_the_second_attempt_on_warm_agents_has_the_same_parent_of_its_ranks(cluster: Cluster) -> None:
    parents = []
    for _ in range(2):
        run = await cluster.run("import os, torch.distributed as dist\ndist.barrier()\nparent = os.getppid()")
        parents.append((await run.result())["parent"])
    assert parents[0] == parents[1] != cluster.agents[0].pid, "torch was imported once"


async def nothing_left(cluster: Cluster) -> None:
    await eventually(lambda: not cluster.processes(0))
