"""Runs that are killed and resume from a snapshot: real agents, real ranks, real Gloo."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
import torch

from minicluster.train.snapshots.session import SHARE
from minicluster.train.snapshots.store import SnapshotStore, job_folders
from minicluster.wire import BlobInfo, SnapshotRef, StopMode

from .cluster import Cluster, Run

TRAIN = """
import os, time, random, numpy, torch, minicluster as mc
from torch.utils.data import DataLoader, TensorDataset

for seed in (torch.manual_seed, random.seed, numpy.random.seed):
    seed(7 + mc.rank())
data = TensorDataset(torch.randn(52, 8, generator=torch.Generator().manual_seed(1)), torch.arange(52))
layers = [torch.nn.Linear(8, 32), torch.nn.Dropout(0.3), torch.nn.BatchNorm1d(32), torch.nn.Linear(32, 1)]
model = torch.nn.Sequential(*layers)
torch.nn.init.normal_(model[0].weight, generator=torch.Generator().manual_seed(2))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.97)
model, optimizer, loader = mc.prepare(model, optimizer, DataLoader(data, batch_size=4, shuffle=True))
losses = {}
step = mc.resume(model, optimizer, loader, schedule=schedule, losses=losses)
began_at, seen = step, []
for epoch in range(loader.epoch, 3):
    for batch, number in loader:
        loss = model(batch).pow(2).mean() + random.random() + numpy.random.rand()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        step += 1
        seen.append((epoch, number.tolist()))
        losses[step] = loss.item()
        if step == STOP_AT:
            from minicluster.train.snapshots.session import session
            session().writer.wait()
            torch.distributed.barrier()
            print("there", flush=True)
            time.sleep(600)
        mc.checkpoint(model, optimizer, loader, step=step, every=EVERY, schedule=schedule, losses=losses)
"""
STEPS = 3 * 7


def training(stop_at: int, every: int) -> str:
    return TRAIN.replace("STOP_AT", str(stop_at)).replace("EVERY", str(every))


async def killed(run: Run) -> None:
    """Kill the ranks of a run that has reached its stop, as after the loss of a node."""
    await run.started()
    for task in run.attempt.tasks:
        await run.cluster.service.order(task, task.orders.run, StopMode.KILL)
    await run.over()


def folders(cluster: Cluster, number: int, job_id: int) -> tuple[Path, ...]:
    environ = {
        "MINICLUSTER_TASK": cluster.label(number),
        "MINICLUSTER_SCRATCH": str(cluster.folder / f"task-{number}"),
    }
    return job_folders(job_id, environ)


def snapshot_store(cluster: Cluster, number: int, job_id: int) -> SnapshotStore:
    return SnapshotStore(folders(cluster, number, job_id))


def lose_snapshots(cluster: Cluster, number: int, job_id: int) -> None:
    for folder in folders(cluster, number, job_id):
        shutil.rmtree(folder, ignore_errors=True)


# Stops in mid-epoch between two snapshots, and with the newest snapshot at the end of an epoch.
@pytest.mark.parametrize(("stop_at", "every", "goes_on_from"), [(13, 5, 10), (10, 7, 7)])
@pytest.mark.asyncio
async def test_a_run_that_was_killed_has_the_losses_of_one_that_was_not(
    cluster: Cluster, stop_at: int, every: int, goes_on_from: int
) -> None:
    whole = await (await cluster.run(training(0, every), nodes=2)).result()
    first = await cluster.run(training(stop_at, every), nodes=2)
    await killed(first)
    again = await cluster.run(training(0, every), nodes=2, job_id=first.attempt.id)
    resumed = await again.result()
    assert resumed["began_at"] == goes_on_from
    assert list(resumed["losses"]) == list(range(1, STEPS + 1))
    assert resumed["losses"] == whole["losses"]
    assert resumed["seen"] == whole["seen"][goes_on_from:]


COUNT = """
import time, torch, minicluster as mc
from torch.utils.data import DataLoader, TensorDataset

model = torch.nn.Linear(1, 1)
data = TensorDataset(torch.arange(40.0).unsqueeze(1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.6)
model, optimizer, loader = mc.prepare(model, optimizer, DataLoader(data, batch_size=2, shuffle=True))
step = began_at = mc.resume(model, optimizer, loader, scale_lr=SCALE)
lr = optimizer.param_groups[0]["lr"]
seen = []
for (batch,) in loader:
    step += 1
    parts = [torch.zeros_like(batch) for _ in range(mc.world_size())]
    torch.distributed.all_gather(parts, batch)
    seen += torch.cat(parts).flatten().tolist()
    mc.checkpoint(model, optimizer, loader, step=step, every=1)
    if step == STOP_AT:
        from minicluster.train.snapshots.session import session
        session().writer.wait()
        torch.distributed.barrier()
        print("there", flush=True)
        time.sleep(600)
"""


def counting(stop_at: int, *, scale: bool = False) -> str:
    return COUNT.replace("STOP_AT", str(stop_at)).replace("SCALE", str(scale))


async def stopped_at_3(cluster: Cluster, nodes: int) -> int:
    """Save snapshots of steps 2 and 3 in the memory of some nodes; return the job's id."""
    run = await cluster.run(counting(3), nodes=nodes)
    await killed(run)
    return run.attempt.id


def in_first_steps(world_size: int, steps: int) -> set[float]:
    """Return the samples of the first epoch's first steps, by the sampler's rule."""
    order = torch.randperm(40, generator=torch.Generator().manual_seed(0)).tolist()
    return set(map(float, order[: steps * 2 * world_size]))


@pytest.mark.asyncio
async def test_with_fewer_ranks_each_sample_of_the_epoch_is_seen_once(cluster: Cluster) -> None:
    job_id = await stopped_at_3(cluster, 3)
    again = await cluster.run(counting(0, scale=True), nodes=2, job_id=job_id)
    resumed = await again.result()
    assert (resumed["began_at"], resumed["lr"]) == (3, pytest.approx(0.4))
    before = in_first_steps(3, 3)
    assert len(resumed["seen"]) == 40 - len(before)
    assert set(resumed["seen"]) == set(map(float, range(40))) - before
    assert "2 ranks go on where 3 were" in again.attempt.text(0)
    assert "go on" not in again.attempt.text(1)


@pytest.mark.asyncio
async def test_a_node_that_lacks_the_snapshot_has_it_from_a_peer(cluster: Cluster) -> None:
    job_id = await stopped_at_3(cluster, 2)
    lose_snapshots(cluster, 0, job_id)
    resumed = await (await cluster.run(counting(0), nodes=3, job_id=job_id)).result()
    assert resumed["began_at"] == 3
    assert set(resumed["seen"]) == set(map(float, range(40))) - in_first_steps(2, 3)


@pytest.mark.asyncio
async def test_damaged_files_are_passed_over(cluster: Cluster) -> None:
    job_id = await stopped_at_3(cluster, 1)
    newest, older = snapshot_store(cluster, 0, job_id).entries()
    assert (newest.step, older.step) == (3, 2)
    data = next(newest.folder.glob("*.distcp"))
    damaged = bytearray(data.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    data.write_bytes(damaged)
    resumed = await (await cluster.run(counting(0), nodes=1, job_id=job_id)).result()
    assert resumed["began_at"] == 2


@pytest.mark.asyncio
async def test_an_agent_brings_the_newest_into_the_storage_and_another_goes_on_from_it(
    cluster: Cluster,
) -> None:
    run = await cluster.run(counting(0), nodes=1)
    await run.result()
    (snapshot,) = run.attempt.tasks[0].report.snapshots
    assert (snapshot.step, snapshot.attempt, snapshot.keep) == (20, run.attempt.id, 2)
    lose_snapshots(cluster, 0, run.attempt.id)
    ref = SnapshotRef(step=snapshot.step, attempt=snapshot.attempt, parts=(snapshot.blob,))
    again = await cluster.run(counting(0), nodes=2, job_id=run.attempt.id, snapshot=ref)
    assert (await again.result())["began_at"] == 20


@pytest.mark.asyncio
async def test_a_snapshot_that_cannot_be_fetched_is_told_and_not_waited_for(cluster: Cluster) -> None:
    ref = SnapshotRef(step=9, attempt=1, parts=(BlobInfo(sha256="e" * 64, size_bytes=5),))
    run = await cluster.run(counting(0), nodes=1, snapshot=ref)
    assert (await run.result())["began_at"] == 0
    assert any("step 9 could not be fetched" in note for note in run.attempt.notes)


AUTOMATIC = """
import time, torch, minicluster as mc
from minicluster.train.snapshots.session import session
model = mc.prepare(torch.nn.Linear(4, 1))
step, go_on = 0, torch.ones(1)
while go_on.item():
    step += 1
    time.sleep(0.002)
    mc.checkpoint(model, step=step)
    go_on[0] = float(len(session().snapshot_store.entries()) < 2)
    torch.distributed.broadcast(go_on, src=0)
"""


@pytest.mark.asyncio
async def test_the_interval_is_chosen_and_the_ranks_agree_on_it(cluster: Cluster) -> None:
    run = await cluster.run(AUTOMATIC, nodes=2)
    await run.result()
    mine, peers = (snapshot_store(cluster, number, run.attempt.id).entries() for number in (0, 1))
    assert [entry.step for entry in mine] == [entry.step for entry in peers]
    assert len(mine) == 2
    assert mine[0].step - mine[1].step > 5, "a snapshot of nearly each step costs too much"
    found = [re.search(r"([\d.]+)% of the", note) for note in run.attempt.notes]
    shares = [float(share[1]) for share in found if share]
    assert len(shares) == 1 and 0 < shares[0] <= 100 * SHARE, run.attempt.notes
