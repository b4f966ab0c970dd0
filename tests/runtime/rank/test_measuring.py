"""What is measured in real ranks without a word of the cell."""

from __future__ import annotations

import gzip
import json
import re

import pytest

from minicluster.wire import ProfileOrder

from ..cluster import Cluster, Run

TRAINING = """
import time
import torch
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
import minicluster as mc

class Slow(torch.utils.data.Dataset):
    def __len__(self):
        return 10_000
    def __getitem__(self, at):
        time.sleep(0.02 if mc.rank() == 1 else 0)
        return torch.ones(8)

model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
model = DistributedDataParallel(model)
until = time.monotonic() + 5
for batch in DataLoader(Slow(), batch_size=2):
    optimizer.zero_grad()
    model(batch).sum().backward()
    optimizer.step()
    over = torch.tensor(time.monotonic() > until)
    torch.distributed.broadcast(over, 0)
    if over:
        break
"""


async def test_a_ranks_wait_for_data_is_the_others_wait_for_it(cluster: Cluster) -> None:
    run = await cluster.run(TRAINING, nodes=2)
    await run.result()
    sent = [record for stream in ("records", "agent-1") for record in run.records(stream)]
    times = {record.rank: record.speed for record in sent if record.kind == "speed"}
    assert set(times) == {0, 1}
    waiting, slow = times[0], times[1]
    assert waiting and slow
    assert slow.data > 0.5 * slow.seconds
    assert waiting.data < 0.2 * waiting.seconds
    assert waiting.communication > 0.4 * waiting.seconds
    assert slow.communication < 0.3 * slow.seconds
    assert slow.steps > 10


async def test_a_profile_says_what_costs_most_and_leaves_a_trace(cluster: Cluster) -> None:
    training = TRAINING.replace("for batch", "with mc.profile(steps=5, ranks=[1]):\n  for batch")
    training = training.replace("\n    ", "\n      ").replace("+ 5", "+ 2")
    run = await cluster.run(training, nodes=2)
    await run.result()
    assert run.attempt.text(0) == ""
    text = run.attempt.text(1)
    assert "Profile of 5 steps on rank 1:" in text
    assert re.search(r"Most of the time, \d+%, is waiting for data\. Give the DataLoader", text)
    tables = {record.media.name for record in run.records("agent-1") if record.media}
    assert tables == {"profile/time", "profile/operations"}
    (trace,) = cluster.folder.glob("task-1/output-*/profile-rank-1.json.gz")
    assert json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]


async def test_the_next_steps_are_profiled_when_asked_for(cluster: Cluster) -> None:
    run = await cluster.run(TRAINING.replace("+ 5", "+ 120"), nodes=2)
    await cluster.service.until(lambda: all("speed" in kinds(run, stream) for stream in STREAMS))
    await ask_for_profile(run, ProfileOrder(id=1, steps=3, ranks=(1,)))
    await cluster.service.until(lambda: profiles(run, rank=1) == 1)
    await ask_for_profile(run, ProfileOrder(id=1, steps=3, ranks=(1,)))
    await ask_for_profile(run, ProfileOrder(id=2, steps=3, ranks=(0, 1)))
    await cluster.service.until(lambda: profiles(run, rank=0) == 1 and profiles(run, rank=1) == 2)
    assert len(list(cluster.folder.glob("task-1/output-*/profile-rank-1*.json.gz"))) == 2
    await run.stop()
    await run.over()


def profiles(run: Run, rank: int) -> int:
    return run.attempt.text(rank).count(f"Profile of 3 steps on rank {rank}:")


async def ask_for_profile(run: Run, order: ProfileOrder) -> None:
    for task in run.attempt.tasks:
        version = str(int(task.orders.version) + 1)
        task.orders = task.orders.model_copy(update={"version": version, "profile": order})
    await run.cluster.service.send_notices()


STREAMS = ("records", "agent-1")


def kinds(run: Run, stream: str) -> set[str]:
    return {record.kind for record in run.records(stream)}


@pytest.mark.full("torch takes seconds to import TensorBoard in a rank")
async def test_what_is_written_for_tensorboard_is_shown(cluster: Cluster) -> None:
    run = await cluster.run(
        """
        from torch.utils.tensorboard import SummaryWriter
        import minicluster as mc
        writer = SummaryWriter(mc.output() / "logs")
        for step in range(3):
            writer.add_scalar("train/loss", 1 / (step + 1), step)
        writer.add_scalar("new", 7, 1, new_style=True)
        writer.add_scalars("both", {"a": 1.0, "b": 2.0}, 5)
        """,
        nodes=1,
    )
    await run.result()
    found = [(record.step, record.values) for record in run.records() if record.kind == "log"]
    assert [step for step, values in found if "train/loss" in values] == [0, 1, 2]
    assert (1, {"new": 7.0}) in found
    assert found[-2:] == [(5, {"both_a/both": 1.0}), (5, {"both_b/both": 2.0})]
