"""Snapshots of divided models: resumed with as many ranks, with others, from nodes and from the storage."""

from __future__ import annotations

import pytest

from minicluster.train.snapshots.store import Key
from minicluster.wire import SnapshotRef

from .cluster import Cluster, Run
from .rank.divided_model import MODEL, some_in_gate
from .test_snapshots import killed, lose_snapshots, snapshot_store

TRAIN = """
import time
from minicluster.train.snapshots.session import session
schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
model, optimizer, loader = mc.prepare(
    model, optimizer, DataLoader(data, batch_size=BATCH // SHARES, shuffle=True), strategy=STRATEGY, **OPTIONS
)
losses = {}
step = began_at = mc.resume(model, optimizer, loader, schedule=schedule, losses=losses)
for epoch in range(loader.epoch, 2):
    for x, y in loader:
        optimizer.zero_grad()
        if STRATEGY == "pipeline":
            loss = model.step(x, y, loss_of)
        else:
            loss = loss_of(model(x), y)
            loss.backward()
        optimizer.step()
        schedule.step()
        step += 1
        loss = loss.detach().clone()
        dist.all_reduce(loss)
        losses[step] = float(loss) / mc.world_size()
        mc.checkpoint(model, optimizer, loader, step=step, every=2, schedule=schedule, losses=losses)
        if step == STOP_AT:
            session().wait()
            dist.barrier()
            print("there", flush=True)
            time.sleep(600)
state = mc.gather(model)
"""


def training(strategy: str, shares: int, stop_at: int = 0, batch: int = 12, **options: object) -> str:
    text = TRAIN.replace("STRATEGY", repr(strategy)).replace("SHARES", str(shares))
    text = text.replace("BATCH", str(batch))
    return MODEL + text.replace("STOP_AT", str(stop_at)).replace("OPTIONS", repr(options))


async def whole_run(cluster: Cluster, strategy: str, shares: int, nodes: int) -> dict[int, float]:
    run = await cluster.run(training(strategy, shares), nodes=nodes, pull=("losses",))
    return (await run.result())["losses"]


async def there(run: Run) -> None:
    """Wait until each rank has come to its stop; torch's warnings come before."""
    ranks = range(run.attempt.world_size)
    await run.cluster.service.until(lambda: all("there\n" in run.attempt.text(rank) for rank in ranks))


async def stopped(cluster: Cluster, source: str, nodes: int, ranks_per_node: int = 1) -> Run:
    run = await cluster.run(source, nodes=nodes, ranks_per_node=ranks_per_node)
    await there(run)
    await killed(run)
    return run


def keys(cluster: Cluster, number: int, job_id: int) -> list[tuple[Key, int]]:
    return [(one.key, one.part) for one in snapshot_store(cluster, number, job_id).entries()]


@pytest.mark.parametrize("strategy", some_in_gate(["fsdp", "tensor", "pipeline"], ["pipeline"]))
async def test_a_divided_run_that_was_killed_goes_on_as_if_it_had_not_been(
    cluster: Cluster, strategy: str
) -> None:
    shares = 2 if strategy == "fsdp" else 1
    expected = await whole_run(cluster, strategy, shares, 2)
    first = await stopped(cluster, training(strategy, shares, stop_at=7), 2)
    found = keys(cluster, 1, first.attempt.id)
    assert [(key[1], part) for key, part in found[:2]] == [(6, 1), (4, 1)]
    again = await cluster.run(
        training(strategy, shares), nodes=2, job_id=first.attempt.id, pull=("losses", "began_at")
    )
    resumed = await again.result()
    assert resumed["began_at"] == 6
    assert resumed["losses"] == pytest.approx(expected, abs=1e-6)


CHANGES = {
    "more ranks": ("fsdp", {}, (2, 1), (3, 1), 12),
    "fewer ranks": ("fsdp", {}, (2, 2), (2, 1), 12),
    "other groups": ("hybrid", {"group_size": 2}, (2, 2), (2, 1), 12),
    "more stages": ("pipeline", {}, (2, 1), (3, 1), 12),
    "more cuts": ("tensor", {}, (2, 1), (2, 2), 12),
}


@pytest.mark.parametrize("case", some_in_gate(CHANGES, ["fewer ranks"]))
async def test_with_another_number_of_ranks_the_parts_are_divided_anew(cluster: Cluster, case: str) -> None:
    strategy, options, before, after, batch = CHANGES[case]

    def shares(ranks: tuple[int, int]) -> int:
        return 1 if strategy in ("tensor", "pipeline") else ranks[0] * ranks[1]

    expected = await whole_run(cluster, "fsdp", 1, 1)
    source = training(strategy, shares(before), 7, batch, **options)
    first = await stopped(cluster, source, *before)
    source = training(strategy, shares(after), 0, batch, **options)
    again = await cluster.run(
        source, nodes=after[0], ranks_per_node=after[1], job_id=first.attempt.id, pull=("losses", "began_at")
    )
    resumed = await again.result()
    assert resumed["began_at"] == 6
    assert resumed["losses"] == pytest.approx(expected, abs=1e-4)
    ranks = after[0] * after[1]
    assert f"{ranks} ranks go on where {before[0] * before[1]} were" in again.attempt.text(0)


@pytest.mark.full("in the gate they are fetched after a node was lost")
async def test_the_parts_go_into_the_storage_and_are_fetched_from_it(cluster: Cluster) -> None:
    run = await cluster.run(training("fsdp", 2), nodes=2, pull=("losses",))
    expected = (await run.result())["losses"]
    reports = [task.report.snapshots[0] for task in run.attempt.tasks]
    assert [(one.step, one.part, one.parts) for one in reports] == [(10, 0, 2), (10, 1, 2)]
    for number in (0, 1):
        lose_snapshots(cluster, number, run.attempt.id)
    ref = SnapshotRef(step=10, attempt=run.attempt.id, parts=tuple(one.blob for one in reports))
    again = await cluster.run(
        training("fsdp", 3), nodes=3, job_id=run.attempt.id, snapshot=ref, pull=("losses", "began_at")
    )
    resumed = await again.result()
    assert resumed["began_at"] == 10
    assert resumed["losses"] == expected


async def test_with_a_node_lost_the_newest_complete_one_of_the_storage_counts(cluster: Cluster) -> None:
    job = await cluster.run(training("fsdp", 2, stop_at=5), nodes=2)
    await there(job)
    await cluster.service.until(lambda: all(task.report.snapshots for task in job.attempt.tasks))
    stored = [task.report.snapshots[0] for task in job.attempt.tasks]
    assert {one.step for one in stored} == {2}, "the nodes bring the same step"
    await killed(job)
    lose_snapshots(cluster, 1, job.attempt.id)
    assert keys(cluster, 0, job.attempt.id)[0] == ((job.attempt.id, 4), 0)
    ref = SnapshotRef(step=2, attempt=job.attempt.id, parts=tuple(one.blob for one in stored))
    again = await cluster.run(
        training("fsdp", 2), nodes=2, job_id=job.attempt.id, snapshot=ref, pull=("began_at",)
    )
    assert (await again.result())["began_at"] == 2


@pytest.mark.full("in the gate a lost part makes the one before it count")
async def test_a_damaged_part_makes_the_one_before_it_count(cluster: Cluster) -> None:
    first = await stopped(cluster, training("fsdp", 2, stop_at=7), 2)
    newest = snapshot_store(cluster, 1, first.attempt.id).entries()[0]
    data = next(newest.folder.glob("*.distcp"))
    damaged = bytearray(data.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    data.write_bytes(damaged)
    again = await cluster.run(training("fsdp", 2), nodes=2, job_id=first.attempt.id, pull=("began_at",))
    assert (await again.result())["began_at"] == 4


async def test_a_model_that_has_changed_is_refused_by_its_names(cluster: Cluster) -> None:
    first = await stopped(cluster, training("fsdp", 2, stop_at=5), 2)
    larger = training("fsdp", 2).replace("blocks=4", "blocks=5")
    again = await cluster.run(larger, nodes=2, job_id=first.attempt.id)
    error = await again.culprit()
    assert "The snapshot is that of another model" in error.message
    assert "blocks.4" in error.message


OTHER = """
other = copy.deepcopy(model)
model, optimizer = mc.prepare(model, optimizer, strategy="fsdp")
other = mc.prepare(other, strategy="fsdp")
mc.checkpoint(model, GIVEN, step=2, every=2)
"""
REFUSED = {
    "another divided model": ("optimizer, other=other", "other is divided among ranks"),
    "an optimizer of another model": (
        "torch.optim.SGD(other.parameters(), lr=1.0)",
        "The optimizer has parameters that the divided model does not have",
    ),
}


@pytest.mark.parametrize("case", some_in_gate(REFUSED, ["another divided model"]))
async def test_what_one_rank_cannot_save_for_all_is_refused(cluster: Cluster, case: str) -> None:
    given, message = REFUSED[case]
    run = await cluster.run(MODEL + OTHER.replace("GIVEN", given), nodes=2)
    assert message in (await run.culprit()).message


LATER = """
model, optimizer, loader = mc.prepare(model, optimizer, DataLoader(data, batch_size=12), strategy="fsdp")
kept = {"mean": torch.zeros(3)}
GROUP
step = mc.resume(model, optimizer, loader, kept=kept)
mean = kept["mean"]
while step < 4:
    for x, y in loader:
        loss_of(model(x), y).backward()
        optimizer.step()
        step += 1
        kept["mean"] += 1
        mc.checkpoint(model, optimizer, loader, step=step, every=2, kept=kept)
"""


@pytest.mark.full("tests/unit/train/test_snapshots takes tensors out and puts them back")
async def test_tensors_beside_the_model_come_back_and_other_groups_are_refused(cluster: Cluster) -> None:
    first = await cluster.run(MODEL + LATER.replace("GROUP", ""), nodes=1)
    await first.result()
    job_id = first.attempt.id
    again = await cluster.run(MODEL + LATER.replace("GROUP", ""), nodes=1, job_id=job_id, pull=("mean",))
    assert (await again.result())["mean"].tolist() == [4.0] * 3
    group = "optimizer.add_param_group({'params': [optimizer.param_groups[0]['params'].pop()]})"
    other = await cluster.run(MODEL + LATER.replace("GROUP", group), nodes=1, job_id=job_id)
    error = await other.culprit()
    assert "The optimizer has 2 groups of parameters, but 1 in the snapshot" in error.message


SPARED = """
import time
model, optimizer = mc.prepare(model, optimizer, strategy="fsdp")
x, y = data[:12]
waits = []
for step in range(1, 9):
    loss_of(model(x), y).backward()
    optimizer.step()
    optimizer.zero_grad()
    mc.checkpoint(model, optimizer, step=step)
"""


async def test_the_interval_is_chosen_for_divided_models_too(cluster: Cluster) -> None:
    run = await cluster.run(MODEL + SPARED, nodes=2)
    await run.result()
    mine, others = (keys(cluster, number, run.attempt.id) for number in (0, 1))
    assert [key for key, _ in mine] == [key for key, _ in others]
