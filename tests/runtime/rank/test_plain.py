"""Cells of plain Python on real ranks: objects pass between them, and torch is not in the way."""

from __future__ import annotations

import pytest

from minicluster.wire import StopMode
from minicluster.wire.training.framework import Framework
from minicluster_hub.diagnosis.why import explain

from ..cluster import Cluster
from ..test_why import dump_stacks, seen

PI = """
import random
import minicluster as mc
comm = mc.comm()
settings = comm.bcast({"samples": 4000} if comm.rank == 0 else None)
draw = random.Random(comm.rank).random
inside = sum(draw() ** 2 + draw() ** 2 < 1 for _ in range(settings["samples"]))
mc.log(step=0, inside=inside)
pi = 4 * comm.allreduce(inside) / (settings["samples"] * comm.size)
everyone = comm.gather(comm.rank)
device = str(mc.device())
"""


@pytest.mark.parametrize("framework", [Framework.NONE, Framework.TORCH])
async def test_ranks_pass_objects(cluster: Cluster, framework: Framework) -> None:
    run = await cluster.run(PI, framework=framework, pull=("pi", "everyone", "device"))
    result = await run.result()
    assert result["pi"] == pytest.approx(3.14, abs=0.1)
    assert (result["everyone"], result["device"]) == ([0, 1, 2], "cpu")
    assert [record.kind for record in run.records() if record.rank == 0] == ["log"]


async def test_no_group_of_torch_is_there_unless_the_cell_makes_one(cluster: Cluster) -> None:
    run = await cluster.run(
        """
        import torch, torch.distributed as dist
        before = dist.is_initialized()
        dist.init_process_group()
        total = torch.ones(1)
        dist.all_reduce(total)
        total = total.item()
        """,
        framework=Framework.NONE,
        pull=("before", "total"),
    )
    assert await run.result() == {"before": False, "total": 3.0}


async def test_torch_alone_prepares_and_it_is_said(cluster: Cluster) -> None:
    run = await cluster.run(
        "import torch, minicluster as mc\nmc.prepare(torch.nn.Linear(1, 1))", framework=Framework.NONE
    )
    error = await run.culprit()
    assert error.message.startswith("NotPreparable") and "say --framework torch" in error.hint


STATE = """
import time, numpy as np
import minicluster as mc
state = {"weights": np.zeros(20_000), "history": []}
step = began_at = mc.resume(state)
while step < 6:
    step += 1
    state["weights"] = state["weights"] + mc.comm().allreduce(1.0)
    state["history"].append(step)
    mc.checkpoint(state, step=step, every=2)
    if step == STOP_AT:
        from minicluster.train.snapshots.session import session
        session().writer.wait()
        mc.comm().barrier()
        print("there", flush=True)
        time.sleep(600)
weights = float(state["weights"][0])
history = state["history"]
"""


async def test_arrays_go_on_from_a_snapshot(cluster: Cluster) -> None:
    first = await cluster.run(STATE.replace("STOP_AT", "5"), framework=Framework.NONE)
    await first.started()
    for task in first.attempt.tasks:
        await cluster.service.order(task, task.orders.run, StopMode.KILL)
    await first.over()
    again = await cluster.run(
        STATE.replace("STOP_AT", "0"),
        framework=Framework.NONE,
        job_id=first.attempt.id,
        pull=("began_at", "weights", "history"),
    )
    assert await again.result() == {"began_at": 4, "weights": 18.0, "history": [1, 2, 3, 4, 5, 6]}


async def test_a_rank_that_waits_for_an_object_says_so_and_can_be_stopped(cluster: Cluster) -> None:
    run = await cluster.run(
        """
        import time, minicluster as mc
        print("here")
        if mc.rank() == 2:
            time.sleep(600)
        mc.comm().barrier()
        """,
        framework=Framework.NONE,
    )
    await run.started()
    found = await seen(run, lambda them: any(frame.function == "barrier" for frame in them[0].frames))
    stacks = [stack.model_copy(update={"quiet_s": 60.0}) for stack in found.values()]
    assert explain(stacks).sentence.startswith("Rank 2 never reached the barrier of cell line 5")
    assert await dump_stacks(run)
    await run.stop()
    attempt = await run.over()
    assert attempt.failed


async def test_a_rank_that_fails_ends_those_that_wait_for_it(cluster: Cluster) -> None:
    run = await cluster.run(
        """
        import minicluster as mc
        if mc.rank() == 1:
            raise ValueError("no object")
        mc.comm().recv(source=1)
        """,
        framework=Framework.NONE,
    )
    error = await run.culprit()
    assert (error.rank, error.message) == (1, "ValueError: no object")
