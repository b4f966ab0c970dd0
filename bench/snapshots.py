"""The cost of mc.checkpoint with automatic intervals, and the time until a new attempt resumes.

Two models on two ranks: digits (small, steps of a few milliseconds) and a ResNet18. Steps with and without
mc.checkpoint take turns in one run on one machine, so only the ratio is meaningful. Prints the cost of a
snapshot, and one line per target.
"""

from __future__ import annotations

import argparse
import ast
import asyncio
import statistics
import tempfile
from pathlib import Path

from notebook import Notebook, running_cluster
from parts.targets import Target, close

RANKS = 2
COST_BOUND_PERCENT = 3.5
RESUME_BOUND_S = 0.5
"""A tenth of the limit from the loss of a node to the job's next step."""

DIGITS = """\
    layers = [nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(),
              nn.MaxPool2d(2), nn.Flatten(), nn.Linear(512, 10)]
    return nn.Sequential(*layers), torch.randn(32, 1, 8, 8)
"""
RESNET18 = """\
    class Block(nn.Module):
        def __init__(self, inside, out, stride):
            super().__init__()
            self.way = nn.Sequential(
                nn.Conv2d(inside, out, 3, stride, 1, bias=False), nn.BatchNorm2d(out), nn.ReLU(),
                nn.Conv2d(out, out, 3, 1, 1, bias=False), nn.BatchNorm2d(out))
            short = nn.Sequential(nn.Conv2d(inside, out, 1, stride, bias=False), nn.BatchNorm2d(out))
            self.short = short if stride > 1 or inside != out else nn.Identity()
        def forward(self, x):
            return torch.relu(self.way(x) + self.short(x))
    sizes = [(64, 64, 1), (64, 64, 1), (64, 128, 2), (128, 128, 1),
             (128, 256, 2), (256, 256, 1), (256, 512, 2), (512, 512, 1)]
    head = [nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU()]
    tail = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10)]
    return nn.Sequential(*head, *(Block(*size) for size in sizes), *tail), torch.randn(4, 3, 32, 32)
"""
CELL = """\
import time, torch, torch.distributed as dist, minicluster as mc
from torch import nn
from minicluster.train.snapshots.session import session

def make():
{make}
model, batch = make()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
model, optimizer = mc.prepare(model, optimizer)
labels = torch.randint(10, (len(batch),))
mc.resume(model, optimizer)
here, step = session(), 0

def window(steps, keeps):
    global step
    began, cpu = time.perf_counter(), time.process_time()
    for _ in range(steps):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(batch), labels).backward()
        optimizer.step()
        step += 1
        if keeps:
            mc.checkpoint(model, optimizer, step=step)
    here.writer.wait()
    dist.barrier()
    return (time.perf_counter() - began) / steps, (time.process_time() - cpu) / steps

window(10, False)
steps = torch.tensor(max(5, int({window_s} / window(10, False)[0])))
dist.broadcast(steps, src=0)
window(int(steps), True)
figures = []
for _ in range({rounds}):
    off_at = time.monotonic()
    without = window(int(steps), False)
    # The interval's clock stands still while no snapshots are asked for.
    here.schedule._taken_at += time.monotonic() - off_at
    here.plan_at = here.calls + 1
    figures.append((without, window(int(steps), True)))
entries = [entry.size_bytes for entry in here.snapshot_store.entries()]
found = dict(figures=figures, steps=int(steps), cost_s=here.writer.cost_s,
             interval_s=here.schedule.interval_s, size_bytes=entries[0] if entries else 0)
dist.barrier()
began = time.perf_counter()
mc.resume(model, optimizer)
found["resume_s"] = time.perf_counter() - began
"""
MODELS = {"digits": (DIGITS, 5.0, 7), "resnet18": (RESNET18, 25.0, 3)}
"""Each with its cell, the seconds of a window, and the number of rounds."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS))
    chosen = parser.parse_args()
    found = {}
    with (
        tempfile.TemporaryDirectory(prefix="minicluster-bench-") as folder,
        running_cluster(Path(folder)) as cluster,
    ):
        for name in chosen.models:
            found[name] = asyncio.run(measure(cluster, name))
            print(sentence(name, found[name]))
    close(target for name, figures in found.items() for target in targets(name, figures))


async def measure(cluster, name: str) -> dict:
    make, window_s, rounds = MODELS[name]
    source = CELL.format(make=make, window_s=window_s, rounds=rounds)
    async with cluster.notebook() as notebook:
        return await figures_of(notebook, source)


async def figures_of(notebook: Notebook, source: str) -> dict:
    await notebook.run(f"%%distribute --nodes {RANKS} --pull found\n{source}")
    return ast.literal_eval(await notebook.kernel.evaluate("found"))


def cost_percent(found: dict, which: int) -> float:
    """Return the median cost over the rounds, in percent of a step's time (0) or CPU time (1)."""
    ratios = [kept[which] / without[which] for without, kept in found["figures"]]
    return 100.0 * (statistics.median(ratios) - 1.0)


def sentence(name: str, found: dict) -> str:
    rounds = ((without[0] * 1e3, kept[0] * 1e3) for without, kept in found["figures"])
    millis = ", ".join(f"{without:.2f} -> {kept:.2f}" for without, kept in rounds)
    return (
        f"{name}: a snapshot of {found['size_bytes'] / 1e6:.1f} MB takes {found['cost_s'] * 1e3:.0f} ms, "
        f"one each {found['interval_s']:.1f} s; in windows of {found['steps']} steps, "
        f"ms per step without -> with: {millis}; CPU time {cost_percent(found, 1):+.1f} %"
    )


def targets(name: str, found: dict) -> list[Target]:
    return [
        Target(f"snapshots_{name}_cost_percent", cost_percent(found, 0), COST_BOUND_PERCENT),
        Target(f"snapshots_{name}_resume_s", found["resume_s"], RESUME_BOUND_S),
    ]


if __name__ == "__main__":
    main()
