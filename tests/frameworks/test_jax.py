"""JAX on real ranks: they find each other without arguments, train together, resume, stop and fail."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from minicluster.wire import StopMode
from minicluster.wire.training.framework import Framework
from minicluster_hub.diagnosis.why import explain

from ..runtime.cluster import Cluster
from ..runtime.conftest import Start
from ..runtime.task_service import TaskService
from ..runtime.test_why import seen
from .cells import WITHIN_S, killed, result_of, run_jax, started, training

pytestmark = pytest.mark.usefixtures("jax")

FIND = """
import jax, os
jax.distributed.initialize()
total = jax.pmap(lambda x: jax.lax.psum(x, "ranks"), "ranks")(jax.numpy.ones(jax.local_device_count()))
found = [jax.process_count(), jax.process_index() == int(os.environ["RANK"]), float(total[0])]
coordinator = os.environ["JAX_COORDINATOR_ADDRESS"]
"""


@pytest.mark.parametrize(("nodes", "ranks_per_node"), [(3, 1), (2, 2), (1, 1)])
async def test_ranks_find_each_other_without_arguments(
    cluster: Cluster, nodes: int, ranks_per_node: int
) -> None:
    run = await run_jax(cluster, FIND, nodes=nodes, ranks_per_node=ranks_per_node, pull=("found",))
    ranks = nodes * ranks_per_node
    assert await result_of(run) == {"found": [ranks, True, float(ranks)]}


async def test_ranks_that_did_not_look_for_each_other_are_told(cluster: Cluster) -> None:
    run = await run_jax(cluster, "import jax\ncount = jax.process_count()", nodes=2, pull=("count",))
    assert await result_of(run) == {"count": 1}
    assert "JAX computed on each rank by itself" in run.attempt.text(0)
    assert not run.attempt.text(1)


async def test_they_do_so_in_a_cell_of_torch_too(cluster: Cluster) -> None:
    body = FIND.replace('coordinator = os.environ["JAX_COORDINATOR_ADDRESS"]', "")
    more = "import torch\nones = torch.ones(1)\ntorch.distributed.all_reduce(ones)\n"
    run = await cluster.run(body + more + "found = [*found, ones.item()]", pull=("found",))
    assert await result_of(run) == {"found": [3, True, 3.0, 3.0]}


async def test_two_jobs_after_each_other_find_their_own_ranks(cluster: Cluster) -> None:
    first = await result_of(await run_jax(cluster, FIND, nodes=2, pull=("found", "coordinator")))
    second = await result_of(await run_jax(cluster, FIND, nodes=2, pull=("found", "coordinator")))
    assert first["found"] == second["found"] == [2, True, 2.0]
    assert first["coordinator"].startswith("127.0.0.1:")


async def test_a_warm_gang_runs_cells_of_both_in_turn(cluster: Cluster) -> None:
    torch_cell = "import torch\nones = torch.ones(1)\ntorch.distributed.all_reduce(ones)\ntotal = ones.item()"
    assert (await result_of(await run_jax(cluster, FIND, pull=("found",))))["found"][2] == 3.0
    assert await result_of(await cluster.run(torch_cell, pull=("total",))) == {"total": 3.0}
    assert (await result_of(await run_jax(cluster, FIND, pull=("found",))))["found"][2] == 3.0


async def test_a_training_is_the_same_on_all_ranks_and_its_curve_comes(cluster: Cluster) -> None:
    run = await run_jax(cluster, training(40), pull=("losses", "weights", "count"), gather=("losses",))
    result = await result_of(run)
    first, *others = result["losses"]
    assert all(other == first for other in others)
    assert first[40] < first[1] / 10
    assert (type(result["weights"]).__name__, result["count"]) == ("ArrayImpl", 40)
    logged = [record.values for record in run.records() if record.kind == "log" and record.rank == 0]
    assert [values["loss"] for values in logged] == pytest.approx(list(first.values()))


async def test_a_killed_training_goes_on_from_its_snapshot(cluster: Cluster) -> None:
    wanted = ("began_at", "losses", "weights", "count", "key")
    whole = await result_of(await run_jax(cluster, training(20), nodes=2, pull=wanted))
    first = await run_jax(cluster, training(20, stop_at=13), nodes=2)
    await killed(first)
    again = await run_jax(cluster, training(20), nodes=2, job_id=first.attempt.id, pull=wanted)
    resumed = await result_of(again)
    assert resumed["began_at"] == 10
    assert resumed["losses"] == whole["losses"]
    assert resumed["weights"].tolist() == whole["weights"].tolist()
    assert (resumed["count"], resumed["key"]) == (20, whole["key"])


async def test_a_node_that_is_lost_costs_no_more_than_the_steps_since_the_snapshot(
    start: Start,
) -> None:
    cluster = await start(3, TaskService())
    first = await run_jax(cluster, training(20, stop_at=13))
    await started(first)
    cluster.agents[2].send_signal(signal.SIGKILL)
    await asyncio.to_thread(cluster.agents[2].wait)
    for task in first.attempt.tasks[:2]:
        await cluster.service.order(task, task.orders.run, StopMode.KILL)
    await cluster.service.until(
        lambda: all(task.report.cleared >= first.attempt.id for task in first.attempt.tasks[:2])
    )
    again = await run_jax(
        cluster, training(20), nodes=2, job_id=first.attempt.id, pull=("began_at", "losses")
    )
    resumed = await result_of(again)
    assert (resumed["began_at"], list(resumed["losses"])) == (10, list(range(1, 21)))
    assert "2 ranks go on where 3 were" in again.attempt.text(0)


async def test_arrays_that_the_notebook_sends_leave_initialize_as_it_is(cluster: Cluster) -> None:
    import jax.numpy as jnp

    names = {"given": jnp.arange(3.0), "half": jnp.ones(2, jnp.bfloat16)}
    cell = FIND + "\ntwice = given * 2\nkind = type(given).__name__, str(half.dtype)"
    run = await run_jax(cluster, cell, names=names, pull=("found", "twice", "kind"))
    result = await result_of(run)
    assert result["found"] == [3, True, 3.0]
    assert (result["twice"].tolist(), result["kind"]) == ([0.0, 2.0, 4.0], ("ArrayImpl", "bfloat16"))


async def test_what_each_rank_has_a_part_of_stays_with_how_to_gather_it(cluster: Cluster) -> None:
    run = await run_jax(cluster, training(1), pull=("x", "weights"))
    result = await result_of(run)
    assert list(result) == ["weights"]
    (left,) = run.left_behind()
    assert left.name == "x" and "process_allgather" in left.reason


async def test_a_rank_that_ends_early_waits_for_the_others(cluster: Cluster) -> None:
    slow = "\nimport time\nif jax.process_index() == 1:\n    time.sleep(4)\n"
    run = await run_jax(cluster, FIND + slow, pull=("found",))
    assert (await result_of(run))["found"][0] == 3
    assert not run.attempt.notes


async def test_a_rank_that_fails_is_the_one_that_is_told(cluster: Cluster) -> None:
    fails = "\nif jax.process_index() == 2:\n    raise ValueError('rank two')\n"
    collective = "jax.block_until_ready(jax.pmap(lambda x: jax.lax.psum(x, 'i'), 'i')(jax.numpy.ones(1)))\n"
    run = await run_jax(cluster, FIND + fails + collective)
    await run.over(WITHIN_S)
    error = await run.culprit()
    assert (error.rank, error.message) == (2, "ValueError: rank two")


WAIT = (
    FIND
    + """
import time
print("here", flush=True)
if jax.process_index() == 2:
    time.sleep(600)
float(jax.pmap(lambda x: jax.lax.psum(x, "i"), "i")(jax.numpy.ones(1))[0])
"""
)


async def test_why_says_which_rank_never_came_and_stop_ends_all(cluster: Cluster) -> None:
    run = await run_jax(cluster, WAIT)
    await started(run)
    found = await seen(run, lambda them: all(frame_in(them[rank].frames, "/jax/_src/") for rank in (0, 1)))
    stacks = [stack.model_copy(update={"quiet_s": 60.0}) for stack in found.values()]
    assert explain(stacks).sentence.startswith("Rank 2 never reached the JAX computation of cell line")
    await run.stop()
    attempt = await run.over()
    assert attempt.failed
    assert not [pid for number in range(3) for pid in cluster.processes(number) if is_rank(pid)]


def frame_in(frames: object, folder: str) -> bool:
    return any(folder in frame.file for frame in frames)  # type: ignore[attr-defined]


def is_rank(pid: int) -> bool:
    try:
        return b"JAX_PROCESS_ID" in Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False


async def test_where_the_zygote_has_imported_jax_ranks_start_cold(
    start: Start, tmp_path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text("import jax\njax.numpy.ones(1)\n")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    cluster = await start(2, TaskService())
    cell = "import os, sys\nfresh = 'MINICLUSTER_FRESH_RANK' in os.environ\nthere = 'jax' in sys.modules\n"
    run = await cluster.run(cell, nodes=2, framework=Framework.JAX, pull=("fresh", "there"))
    assert await result_of(run) == {"fresh": True, "there": True}
