"""--comm on real ranks: what is averaged, and when, and that no rank ends with a model of its own."""

from __future__ import annotations

from typing import Any

import pytest

from ..cluster import Cluster

TRAIN = """
import torch, torch.distributed as dist, minicluster as mc
from torch.nn.parallel import DistributedDataParallel

torch.manual_seed(3)
layers = torch.nn.Linear(16, 32), torch.nn.BatchNorm1d(32), torch.nn.ReLU(), torch.nn.Linear(32, 4)
model = torch.nn.Sequential(*layers)
ddp = DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=LR)
batches = torch.randn(STEPS, 8, 16, generator=torch.Generator().manual_seed(mc.rank()))
apart = []
losses = []

def flat(tensors):
    return torch.cat([value.detach().double().flatten() for value in tensors])

def spread(tensors):
    mine = flat(tensors)
    everyones = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(everyones, mine)
    return max(float((one - mine).abs().max()) for one in everyones)

for batch in batches:
    optimizer.zero_grad()
    loss = (ddp(batch) - batch[:, :4]).square().mean()
    loss.backward()
    optimizer.step()
    losses.append(float(loss))
    apart.append(spread(model.parameters()))
"""
END = """
mc.average_weights()
after = spread(model.state_dict().values())
found = flat(model.parameters())
"""


async def trained(
    cluster: Cluster, comm: str | None, steps: int = 12, lr: float = 0.1, end: str = END
) -> Any:
    source = (TRAIN + end).replace("STEPS", str(steps)).replace("LR", str(lr))
    run = await cluster.run(source, pull=("apart", "losses", "after", "found"), comm=comm)
    return await run.result()


@pytest.mark.parametrize("comm", ["ddp", "bf16", "fp16", "powersgd:start=2"])
async def test_gradients_are_averaged_in_each_step(cluster: Cluster, comm: str) -> None:
    plain, found = await trained(cluster, None), await trained(cluster, comm)
    assert found["apart"] == [0.0] * 12
    difference = float((found["found"] - plain["found"]).abs().max())
    assert difference < 1e-6 if comm == "ddp" else 0.0 < difference < 0.1


async def test_one_local_step_is_a_step_of_plain_sgd(cluster: Cluster) -> None:
    # Without momentum, the average of the ranks' steps is the step with their average gradient.
    plain = await trained(cluster, None)
    found = await trained(cluster, "localsgd:period=1,sent=fp32")
    assert float((found["found"] - plain["found"]).abs().max()) < 1e-5


@pytest.mark.parametrize("comm", ["localsgd:period=4", "diloco:period=4"])
async def test_ranks_train_apart_and_average_each_period(cluster: Cluster, comm: str) -> None:
    found = await trained(cluster, comm, steps=10)
    assert all(found["apart"])  # The average comes before the next forward pass.
    assert found["after"] == 0.0
    assert found["losses"][-1] < found["losses"][0]


async def test_the_end_of_a_cell_averages(cluster: Cluster) -> None:
    run = await cluster.run(
        (TRAIN + "\nfound = model").replace("STEPS", "10").replace("LR", "0.1"),
        pull=("found", "batches"),
        gather=("found",),
        comm="localsgd:period=4",
    )
    models = (await run.result())["found"]
    states = [model.state_dict() for model in models]
    assert len(states) == 3
    assert all((state[name] == states[0][name]).all() for state in states for name in state)


async def test_a_start_in_plain_ddp(cluster: Cluster) -> None:
    found = await trained(cluster, "localsgd:period=4,start=5", steps=8)
    assert found["apart"][:5] == [0.0] * 5
    assert all(found["apart"][5:])


async def test_an_outer_step_that_takes_the_average_is_local_sgd(cluster: Cluster) -> None:
    local = await trained(cluster, "localsgd:period=3")
    outer = await trained(cluster, "diloco:period=3,lr=1,momentum=0")
    assert float((local["found"] - outer["found"]).abs().max()) == 0.0


async def test_a_second_hook_is_refused(cluster: Cluster) -> None:
    source = """
    import torch
    from torch.nn.parallel import DistributedDataParallel
    ddp = DistributedDataParallel(torch.nn.Linear(2, 2))
    ddp.register_comm_hook(None, lambda state, bucket: None)
    """
    run = await cluster.run(source, comm="bf16")
    error = await run.culprit()
    assert "--comm bf16 has given the model one" in error.message
    assert error.hint == "Leave out --comm, or the hook."


async def test_a_comm_that_had_nothing_to_do_is_reported(cluster: Cluster) -> None:
    run = await cluster.run("print('done')", comm="bf16")
    await run.result()
    said = "--comm bf16 had no effect: the cell made no DistributedDataParallel"
    assert [said in run.attempt.text(rank) for rank in range(3)] == [True, False, False]


SLOW = """
import time, torch.distributed as dist
whole = dist.all_reduce
def slow(tensor, *args, **named):
    # A network that takes a second for 10 MB.
    time.sleep(tensor.nbytes / 10e6)
    return whole(tensor, *args, **named)
dist.all_reduce = slow
"""


@pytest.mark.alone("on a busy machine computing takes longer, or a message: another choice is right")
async def test_auto_keeps_plain_ddp_where_communication_is_cheap(cluster: Cluster) -> None:
    source = "import time\n" + TRAIN.replace("    optimizer.step()", "    optimizer.step(); time.sleep(0.05)")
    run = await cluster.run(source.replace("STEPS", "14").replace("LR", "0.1"), pull=("apart",), comm="auto")
    assert (await run.result())["apart"] == [0.0] * 14
    said = run.attempt.text(0)
    assert "--comm auto: A step computes for" in said
    assert "Plain DDP it stays" in said
    assert "Gbit/s" in said


@pytest.mark.alone("on a busy machine computing takes longer, or a message: another choice is right")
async def test_auto_chooses_something_else_where_the_network_is_slow(cluster: Cluster) -> None:
    source = SLOW + TRAIN.replace("16, 32", "16, 20000").replace("32)", "20000)").replace(
        "(32, 4", "(20000, 4"
    )
    run = await cluster.run(source.replace("STEPS", "40").replace("LR", "0.01"), pull=("apart",), comm="auto")
    found = (await run.result())["apart"]
    said = [line for line in run.attempt.text(0).splitlines() if line.startswith("--comm auto")]
    assert len(said) == 1, said
    assert "which also repeats this run" in said[0]
    assert found[:11] == [0.0] * 11


APART = """
import time, torch, minicluster as mc
from torch.nn.parallel import DistributedDataParallel
SIZE = 400_000
weight, target = [(10.0, 0.0), (1.0, 6.0), (1.0, 6.0)][mc.rank()]

class Values(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.values = torch.nn.Parameter(torch.zeros(SIZE))
    def forward(self):
        return self.values

model = Values()
ddp = DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05 * SIZE)
losses = []
for step in range(STEPS):
    optimizer.zero_grad()
    loss = weight * (ddp() - target).square().mean()
    loss.backward()
    optimizer.step()
    losses.append(float(loss))
    time.sleep(0.02)
found = float(model.values.detach().double().mean())
"""


@pytest.mark.alone("on a busy machine computing takes longer, or a message: another choice is right")
async def test_auto_goes_back_if_the_loss_rises(cluster: Cluster) -> None:
    # Together the ranks find 1, where their losses are 20 on average. Apart, each goes to its own target; the
    # average of these is 4, where the losses are 56.
    source = SLOW.replace("10e6", "40e6") + APART.replace("STEPS", "90")
    run = await cluster.run(source, pull=("losses", "found"), gather=("found",), comm="auto")
    found = (await run.result())["found"]
    said = [line for line in run.attempt.text(0).splitlines() if line.startswith("--comm auto")]
    assert len(said) == 2, said
    assert "--comm localsgd" in said[0]
    assert "The loss behaved otherwise" in said[1]
    assert found == pytest.approx([1.0] * 3, abs=1e-3)
