"""--balance on real ranks: shares follow the speeds, and the result is that of one process."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from minicluster.train.loaders import share

from ..cluster import Cluster

MODEL = """
import time, torch, minicluster as mc
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

def data():
    generator = torch.Generator().manual_seed(1)
    return TensorDataset(torch.randn(SIZE, 8, generator=generator), torch.randn(SIZE, 2, generator=generator))

def network():
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 2))
"""
TRAIN = """
class Card(nn.Module):
    # A card that takes a time for each sample, and lets others have the processor meanwhile.
    def __init__(self):
        super().__init__()
        self.network = network()
        self.steps = 0

    def forward(self, batch):
        speeds = (1, 4, 2) if self.steps < CHANGE_AT else (4, 1, 1)
        self.steps += 1
        time.sleep(len(batch) * 0.01 / speeds[mc.rank()])
        return self.network(batch)

model = Card()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
loader = DataLoader(data(), batch_size=8, shuffle=True, num_workers=WORKERS)
ddp, optimizer, loader = mc.prepare(model, optimizer, loader)
shares = []
for epoch in range(EPOCHS):
    for batch, truth in loader:
        optimizer.zero_grad()
        nn.functional.mse_loss(ddp(batch), truth).backward()
        optimizer.step()
        shares.append(len(batch))
mc.average_weights()
found = torch.cat([weight.detach().flatten() for weight in model.parameters()])
"""


def source(
    train: str = TRAIN, size: int = 250, epochs: int = 6, workers: int = 0, change_at: int = 1000
) -> str:
    cell = MODEL + train
    values = {"SIZE": size, "EPOCHS": epochs, "WORKERS": workers, "CHANGE_AT": change_at}
    for name, value in values.items():
        cell = cell.replace(name, str(value))
    return cell


def by_one_process(size: int = 250, epochs: int = 6, every: int = 1, momentum: float = 0.9) -> torch.Tensor:
    """Return the weights after the same training in this process."""
    names: dict[str, Any] = {}
    exec(MODEL.replace("SIZE", str(size)), names)
    model = names["network"]()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=momentum)
    loader = share(DataLoader(names["data"](), batch_size=24, shuffle=True))
    for _ in range(epochs):
        for step, (given, truth) in enumerate(loader):
            if step % every == 0:
                optimizer.zero_grad()
            nn.functional.mse_loss(model(given), truth).backward()
            if step % every == every - 1:
                optimizer.step()
    return torch.cat([weight.detach().flatten() for weight in model.parameters()])


async def trained(cluster: Cluster, cell: str, **more: Any) -> tuple[dict[str, Any], str]:
    run = await cluster.run(cell, pull=("found", "shares"), gather=("shares",), balance=True, **more)
    return await run.result(), run.attempt.text(0)


@pytest.mark.parametrize("workers", [2, pytest.param(0, marks=pytest.mark.full("the gate has workers"))])
async def test_the_result_is_that_of_one_process(cluster: Cluster, workers: int) -> None:
    # 250 samples are 10 batches of 24, and one of 10. In the middle, the fast rank becomes a slow one.
    found, said = await trained(cluster, source(workers=workers, change_at=35))
    assert float((found["found"] - by_one_process()).abs().max()) < 1e-6
    steps = list(zip(*found["shares"], strict=True))
    assert [sum(step) for step in steps] == ([24] * 10 + [10]) * 6
    assert steps[0] == (8, 8, 8)
    # On a busy machine, a rank may seem slow for some time; but at some time the fast one has more.
    assert max(step[1] for step in steps[:35]) > 8
    assert max(step[0] for step in steps[35:]) > 8
    assert said.count("--balance: a step's 24 samples are divided by measured speed") >= 2


ACCUMULATE = """
from contextlib import nullcontext

for epoch in range(EPOCHS):
    for step, (batch, truth) in enumerate(loader):
        with ddp.no_sync() if step % 3 != 2 else nullcontext():
            nn.functional.mse_loss(ddp(batch), truth).backward()
        shares.append(len(batch))
        if step % 3 == 2:
            optimizer.step()
            optimizer.zero_grad()
found = torch.cat([weight.detach().flatten() for weight in model.parameters()])
"""


async def test_accumulated_gradients_count_by_the_samples_of_their_own_batch(cluster: Cluster) -> None:
    # 193 samples are 8 batches of 24, and one of a single sample, which three ranks share.
    train = TRAIN[: TRAIN.index("for epoch")] + ACCUMULATE
    found, _ = await trained(cluster, source(train, size=193))
    assert float((found["found"] - by_one_process(193, every=3)).abs().max()) < 1e-6
    first, *_, last = zip(*found["shares"], strict=True)
    assert (first, last) == ((8, 8, 8), (1, 1, 1))
    assert len(set(found["shares"][1][:-1])) > 2


ALIKE = pytest.mark.full("the gate has bf16, which is exchanged in the same place")


@pytest.mark.parametrize(
    ("comm", "near"),
    [
        ("ddp", 1e-6),
        ("localsgd:period=1,sent=fp32", 1e-5),
        ("bf16", 0.01),
        *(pytest.param(*one, marks=ALIKE) for one in (("fp16", 1e-3), ("powersgd", 0.3))),
    ],
)
async def test_each_way_to_communicate_counts_samples(cluster: Cluster, comm: str, near: float) -> None:
    # Without momentum, a local step of each rank is a step with the average gradient.
    train = TRAIN.replace(", momentum=0.9", "")
    found, _ = await trained(cluster, source(train, epochs=4), comm=comm)
    exact = by_one_process(epochs=4, momentum=0.0)
    assert float((found["found"] - exact).abs().max()) < near
    assert len(set(found["shares"][1])) > 2


async def failed(cluster: Cluster, train: str, **sizes: int) -> tuple[str, str]:
    run = await cluster.run(source(train, **sizes), balance=True)
    error = await run.culprit()
    return error.message, error.hint


LOOP = TRAIN[: TRAIN.index("shares = []")]


async def test_a_loop_that_is_a_batch_ahead_is_refused(cluster: Cluster) -> None:
    # With the next batch's weight, the result would be another one.
    ahead = """
batches = iter(loader)
following = next(batches)
while following is not None:
    batch, truth = following
    following = next(batches, None)
    optimizer.zero_grad()
    nn.functional.mse_loss(ddp(batch), truth).backward()
    optimizer.step()
"""
    message, hint = await failed(cluster, LOOP + ahead)
    assert "takes the next batch from its loader before it trains on this one" in message
    assert "num_workers=" in hint


async def test_steps_with_batches_of_two_loaders_are_refused(cluster: Cluster) -> None:
    both = """
_, _, other = mc.prepare(ddp, optimizer, DataLoader(data(), batch_size=16))
for (batch, truth), (second, _) in zip(loader, other):
    optimizer.zero_grad()
    (nn.functional.mse_loss(ddp(batch), truth) + ddp(second).square().mean()).backward()
    optimizer.step()
"""
    message, hint = await failed(cluster, LOOP + both)
    assert "A step uses batches of two loaders" in message
    assert "mc.prepare(model, loader=loader) divides evenly" in hint


async def test_loops_one_after_the_other_and_left_early(cluster: Cluster) -> None:
    loops = """
_, _, other = mc.prepare(ddp, optimizer, DataLoader(data(), batch_size=16))
_, test = mc.prepare(ddp, loader=DataLoader(data(), batch_size=10))
shares = []
for one in (loader, other, loader):
    for number, (batch, truth) in enumerate(one):
        if number == 2:
            continue  # A batch that all ranks leave out.
        optimizer.zero_grad()
        nn.functional.mse_loss(ddp(batch), truth).backward()
        optimizer.step()
        if number == 6:
            break
    with torch.no_grad():
        shares.append([len(batch) for batch, _ in test])
found = type(loader)
"""
    found, _ = await trained(cluster, source(LOOP + loops))
    # Data to evaluate with is divided evenly.
    assert found["shares"][0] == found["shares"][1] == found["shares"][2]
    assert found["found"].__name__ == "BalancedLoader"


async def test_a_gpu_that_is_full_is_told_what_to_do(cluster: Cluster) -> None:
    full = """
for epoch in range(EPOCHS):
    for batch, truth in loader:
        if len(batch) > 10 and mc.rank() == 1:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB.")
        optimizer.zero_grad()
        nn.functional.mse_loss(ddp(batch), truth).backward()
        optimizer.step()
"""
    _, hint = await failed(cluster, LOOP + full)
    assert hint.startswith("The GPU's memory is full. --balance gave this rank 1")
    assert "Lower the loader's batch_size" in hint


async def test_without_a_loader_it_says_that_it_had_no_effect(cluster: Cluster) -> None:
    run = await cluster.run(
        "import torch, minicluster as mc\nmc.prepare(torch.nn.Linear(2, 2))", balance=True
    )
    await run.result()
    assert "--balance had no effect: it divides the batches of a loader" in run.attempt.text(0)
    run = await cluster.run("print('done')", balance=True)
    await run.result()
    assert "--balance had no effect: the cell made no DistributedDataParallel" in run.attempt.text(0)


async def test_a_model_that_it_cannot_weigh_is_refused(cluster: Cluster) -> None:
    message, hint = await failed(
        cluster, LOOP.replace("mc.prepare(model, ", "mc.prepare(model.requires_grad_(False), ")
    )
    assert "--balance cannot weigh the gradients of a Card" in message
    assert "with parameters that are trained" in hint
    synced = LOOP.replace("model = Card()", "model = nn.Sequential(nn.SyncBatchNorm(8), nn.Linear(8, 2))")
    message, _ = await failed(cluster, synced)
    assert "--balance cannot measure speeds with SyncBatchNorm" in message


async def test_shares_are_readings_of_the_run(cluster: Cluster) -> None:
    run = await cluster.run(source(epochs=2), balance=True)
    await run.result()
    logged = [record.values for record in run.records() if record.values and "share/rank-0" in record.values]
    assert logged and sum(logged[0].values()) == 24
    assert logged[0]["share/rank-1"] > logged[0]["share/rank-0"]


ONE_SLOW = """
model = nn.Sequential(nn.Linear(8, 32), nn.BatchNorm1d(32), nn.Linear(32, 2))
optimizer = Slow(model.parameters(), lr=0.05)
shared = DataLoader(SlowData(), batch_size=8)
ddp, optimizer, loader = mc.prepare(model, optimizer, shared)
shares = []
for batch, truth in loader:
    optimizer.zero_grad()
    found = ddp(batch)
    time.sleep(0.004 * len(batch))
    nn.functional.mse_loss(found, truth).backward()
    optimizer.step()
    shares.append(len(batch))
found = None
"""
DATA_S = """
class SlowData(torch.utils.data.Dataset):
    def __len__(self):
        return 4 * SIZE
    def __getitem__(self, index):
        time.sleep(0.008 * (mc.rank() == 0))
        return torch.randn(8), torch.randn(2)
Slow = torch.optim.SGD
"""
OPTIMIZER_S = """
class Slow(torch.optim.SGD):
    def step(self, closure=None):
        time.sleep(0.024 * (mc.rank() == 0))
        return super().step(closure)
SlowData = lambda: TensorDataset(torch.randn(4 * SIZE, 8), torch.randn(4 * SIZE, 2))
"""


@pytest.mark.parametrize("slow", [DATA_S, OPTIMIZER_S], ids=["loader", "optimizer"])
async def test_a_rank_is_slow_by_all_that_it_does_itself(cluster: Cluster, slow: str) -> None:
    # Each forward pass begins with rank 0's buffers, so that the others wait for it and seem to be as slow.
    # Rank 0 takes as long as they do for 4 samples of 24: 4 * 12 ms, or 4 * 4 ms and 24 ms; they 10 * 4 ms.
    found, _ = await trained(cluster, source(slow + ONE_SLOW))
    first, *others = (ranks[38] for ranks in found["shares"])
    assert first < min(others), found["shares"]
