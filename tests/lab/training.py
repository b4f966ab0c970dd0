"""A training with snapshots that prints the time of each step, for tests that disturb it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from .jobs import WITHIN_S, Jobs
from .machines.processes import wait_for

STEPS = 100_000
EVERY = 5
"""Steps between two snapshots."""
TRAINING = f"""
import time, torch, minicluster as mc
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
data = TensorDataset(torch.randn(8192, 64), torch.randint(10, (8192,)))
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
model, optimizer, loader = mc.prepare(model, optimizer, DataLoader(data, batch_size=16, shuffle=True))
step = mc.resume(model, optimizer, loader)
print("resumed", step, "on", mc.world_size(), flush=True)
while step < {STEPS}:
    for x, y in loader:
        loss = torch.nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        mc.checkpoint(model, optimizer, loader, step=step, every={EVERY})
        print("step", step, time.time(), flush=True)
        time.sleep(0.05)
"""


@contextmanager
def training(jobs: Jobs, **spec: object) -> Iterator[int]:
    """Run the training on nodes other than the platform's, which another job occupies meanwhile."""
    blocker = jobs.submit("import time\nwhile True: time.sleep(1)\n", slots_per_node=2)
    assert jobs.wait(blocker, "running")["nodes"] == [jobs.cluster.first.name]
    job = jobs.submit(TRAINING, **{"nodes": {"min": 2, "max": 3}, **spec})  # type: ignore[arg-type]
    try:
        wait_for(lambda: len(steps(jobs, job)) > 2 * EVERY, f"steps of job {job}", WITHIN_S, 0.2)
        yield job
    finally:
        for one in (job, blocker):
            jobs.stop(one)
        for one in (job, blocker):
            jobs.wait(one)


def steps(jobs: Jobs, job: int, attempt: int = 1, rank: int = 0) -> dict[int, float]:
    """Return the time of each step of an attempt, as printed by one of its ranks."""
    lines = [line.split() for line in jobs.log(job, rank, attempt).splitlines()]
    return {
        int(fields[1]): float(fields[2]) for fields in lines if fields[:1] == ["step"] and len(fields) == 3
    }
