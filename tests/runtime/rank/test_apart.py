"""Strategies of whole models that train apart: what is averaged, who waits for whom, what a step sends."""

from __future__ import annotations

import pytest

from ..cluster import Cluster

TRAIN = """
import torch, torch.distributed as dist, minicluster as mc
from datetime import timedelta
torch.manual_seed(3)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
model, optimizer = mc.prepare(model, optimizer, strategy=STRATEGY, period=4)
batches = torch.randn(40, 16, 8, generator=torch.Generator().manual_seed(mc.rank()))
store = dist.distributed_c10d._get_default_store()
losses = []
for batch in batches:
    optimizer.zero_grad()
    loss = (model(batch) - batch.sum(dim=1, keepdim=True)).square().mean()
    loss.backward()
    optimizer.step()
    losses.append(float(loss))
    # In the first steps, DistributedDataParallel agrees on its buckets.
    if STRATEGY == "async" and mc.rank() == 0 and len(losses) == 3:
        store.wait(["through-1", "through-2"], timedelta(seconds=120))
store.set(f"through-{mc.rank()}", "yes")
(row,) = mc.explain(model).table.rows[:1]
sent = row[6]
mc.average_weights()
weights = model.module.weight.detach().clone()
"""
SENT = {"localsgd": "6 B", "diloco": "6 B", "async": "18 B"}
"""A step of rank 0, of three, with 9 weights of 4 bytes. A change has 2 bytes a weight, and goes out each 4
steps: an average sends 4/3 of it. The server of async answers the two others with all weights."""


@pytest.mark.parametrize("strategy", SENT)
async def test_ranks_that_train_apart_end_alike(cluster: Cluster, strategy: str) -> None:
    """With async, one rank stands still until the others have made all their steps."""
    run = await cluster.run(
        TRAIN.replace("STRATEGY", repr(strategy)),
        nodes=3,
        pull=("losses", "weights", "sent"),
        gather=("weights",),
    )
    found = await run.result()
    assert all((one == found["weights"][0]).all() for one in found["weights"])
    assert found["losses"][-1] < found["losses"][0] / 2
    assert found["sent"] == SENT[strategy]


SET = """
import torch, minicluster as mc
model = mc.prepare(torch.nn.Linear(4, 1), strategy="async", period=2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.0)

def step():
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()

step()
with torch.no_grad():
    model.module.weight.fill_(3.0)
step()
mc.average_weights()
weight = model.module.weight.detach().clone()
"""


async def test_what_a_cell_sets_between_two_steps_is_not_lost(cluster: Cluster) -> None:
    run = await cluster.run(SET, nodes=2, pull=("weight",))
    weight = (await run.result())["weight"]
    assert weight.flatten().tolist() == pytest.approx([3.0] * 4, rel=0.01)
