"""Trials of a sweep on real ranks: the same parameters on all of them, and one step at which all leave."""

from __future__ import annotations

import pytest

from minicluster.wire.sweeps.trials import DrawnParameter, NumberRange, TrialRef

from ..cluster import Cluster, Run

TRIAL = TrialRef(sweep=1, number=4, metric="loss", prunes=True)
TRAINING = """
    import time, torch, torch.distributed as dist, minicluster as mc
    steps = 0
    for step in range(2000):
        gradient = torch.ones(4)
        dist.all_reduce(gradient)
        steps = step
        {log}
        if step == 2:
            print("three steps", flush=True)
        time.sleep(0.002 if mc.rank() else 0.001)
"""


@pytest.fixture(autouse=True)
def fresh(cluster: Cluster) -> None:
    cluster.service.suggested.clear()
    cluster.service.suggestions.clear()
    cluster.service.ahead = ()
    cluster.service.left.clear()


async def told_to_leave(run: Run, service_order: int | None = None) -> None:
    """Prune the trial, on one node before the others."""
    service = run.cluster.service
    for task in run.attempt.tasks[:service_order]:
        await service.order(task, task.orders.run, leave=True)


async def test_all_ranks_get_the_same_parameters_and_each_node_asks_once(cluster: Cluster) -> None:
    source = """
        import minicluster as mc
        class Wide: pass
        first = mc.suggest("first", 0.0, 10.0)
        if first == 0.0:
            width = mc.suggest("width", [32, Wide, 128])
        whole = mc.suggest("layers", 1, 8, int=True)
        again = mc.suggest("first", 0.0, 10.0)
        found = (first, getattr(width, "__name__", width), whole, type(whole).__name__, again)
    """
    run = await cluster.run(source, nodes=2, ranks_per_node=2, trial=TRIAL, gather=("found",))
    result = await run.result()
    assert result["found"] == [(0.0, "Wide", 2, "int", 0.0)] * 4
    assert len(cluster.service.suggestions) == 2 * 3
    names = {asked.name: asked.among for asked in cluster.service.suggestions}
    assert names["width"].choices == (32, "Wide", 128)


async def test_what_was_drawn_ahead_is_there_at_once_and_the_service_hears_of_it(cluster: Cluster) -> None:
    source = """
        import minicluster as mc
        asked = (("first", 0.0, 10.0), ("second", 0.0, 5.0), ("third", 0.0, 1.0))
        found = [mc.suggest(*one) for one in asked]
    """
    number = NumberRange(low=0.0, high=10.0)
    cluster.service.ahead = tuple(
        DrawnParameter(name=name, among=number, value=7.5) for name in ("first", "second", "unused")
    )
    run = await cluster.run(source, nodes=1, ranks_per_node=2, trial=TRIAL, gather=("found",))
    found = (await run.result())["found"]
    # The service says 0, 1, 2 in turn. The second range is another one than what was drawn ahead for.
    assert found == [[7.5, 1.0, 2.0]] * 2
    assert sorted(asked.name for asked in cluster.service.suggestions) == ["first", "second", "third"]


async def test_a_refused_parameter_says_why_in_the_cell(cluster: Cluster) -> None:
    run = await cluster.run('import minicluster as mc\nmc.suggest("refused", 0, 1)', nodes=1, trial=TRIAL)
    assert "no such parameter" in (await run.culprit()).message


async def test_ranks_that_train_together_leave_at_the_same_step(cluster: Cluster) -> None:
    source = TRAINING.format(log="mc.log(step=step, loss=1.0 / (1 + step))")
    run = await cluster.run(source, nodes=2, trial=TRIAL, gather=("steps",))
    await run.started()
    # The word reaches one node only: the other one learns it from the job's store.
    await told_to_leave(run, 1)
    steps = (await run.result())["steps"]
    assert steps[0] == steps[1] < 1999
    assert {(left.call, left.step) for left in cluster.service.left} == {(steps[0] + 1, float(steps[0]))}
    assert f"Trial 4 is pruned at step {steps[0]}" in run.attempt.text(0)


async def test_the_word_to_all_nodes_at_once_is_still_one_step(cluster: Cluster) -> None:
    source = TRAINING.format(log="mc.log(loss=1.0)")
    run = await cluster.run(source, nodes=3, ranks_per_node=2, trial=TRIAL, gather=("steps",))
    await run.started()
    await told_to_leave(run)
    steps = (await run.result())["steps"]
    assert len(set(steps)) == 1
    assert len({left.call for left in cluster.service.left}) == 1


async def test_other_metrics_and_other_cells_go_on(cluster: Cluster) -> None:
    source = """
        import time, minicluster as mc
        for step in range(100):
            mc.log(step=step, accuracy=0.5)
            if step == 2:
                print("three steps", flush=True)
            time.sleep(0.005)
    """
    run = await cluster.run(source, nodes=1, trial=TRIAL)
    await run.started()
    await told_to_leave(run)
    assert (await run.result())["step"] == 99
    assert cluster.service.left == []


async def test_outside_of_a_sweep_it_is_the_middle_and_says_so_once(cluster: Cluster) -> None:
    source = """
        import minicluster as mc
        for _ in range(3):
            found = (mc.suggest("lr", 1e-5, 1e-1, log=True), mc.suggest("width", [32, 64]))
        whole = (mc.suggest("n", 1, 8, int=True), mc.suggest("m", 0.0, 1.0, step=0.25))
    """
    run = await cluster.run(source, nodes=1)
    result = await run.result()
    assert result["found"] == (pytest.approx(1e-3), 32)
    assert result["whole"] == (4, 0.5) or result["whole"] == (5, 0.5)
    assert run.attempt.text(0).count("lr is") == 1
