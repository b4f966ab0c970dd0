"""The first compiled step of a model that an earlier gang compiled, against the time when nobody had.

Both runs are the same cell on new tasks of two nodes: the gang of the first has ended. A step is forward,
backward and the optimizer. What remains in the second run is importing the compiler, fetching the cache,
tracing, and torch's own look at what the CPU can do, which is the same in both.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from dataclasses import dataclass
from pathlib import Path

from notebook import Cluster, Notebook, running_cluster
from parts.targets import Target, close

NODES = 2
RATIO_BOUND = 0.25
"""Compiling takes nine tenths of the first run's time and more, of a model as small as this one, too."""
CELL = """%%distribute --nodes {nodes} --plain --pull first_step_s,second_step_s,misses
import time
import torch, torch.distributed as dist
from torch._dynamo.utils import counters
torch.manual_seed(0)
model = torch.nn.Sequential(
    torch.nn.Linear(64, 128), torch.nn.GELU(), torch.nn.LayerNorm(128), torch.nn.Linear(128, 10)
)
model = torch.nn.parallel.DistributedDataParallel(torch.compile(model))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x, y = torch.rand(32, 64), torch.randint(10, (32,))
def step():
    dist.barrier()
    began = time.monotonic()
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
    dist.barrier()
    return time.monotonic() - began
first_step_s, second_step_s = step(), step()
misses = counters["inductor"]["fxgraph_cache_miss"]
"""


@dataclass(frozen=True)
class Run:
    """Seconds of the first and the second step; graphs that were compiled on rank 0."""

    first_step_s: float
    second_step_s: float
    misses: int


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="minicluster-bench-") as folder,
        running_cluster(Path(folder), ("--MiniclusterHub.keep_warm_s=0",), NODES) as cluster,
    ):
        cold, cached = asyncio.run(measure(cluster))
    for name, run in (("nothing compiled before", cold), ("compiled by an earlier gang", cached)):
        print(
            f"{name}: first step {run.first_step_s:.2f} s, "
            f"second {run.second_step_s * 1e3:.1f} ms, {run.misses} graphs compiled"
        )
    close(
        [
            Target("compile_first_step_ratio", cached.first_step_s / cold.first_step_s, RATIO_BOUND),
            Target("compile_again_graphs", cached.misses, 0),
        ]
    )


async def measure(cluster: Cluster) -> tuple[Run, Run]:
    async with cluster.notebook() as notebook:
        return await run(notebook), await run(notebook)


async def run(notebook: Notebook) -> Run:
    """Run the cell on new tasks."""
    await notebook.until_idle()
    await notebook.run(CELL.format(nodes=NODES))
    names = ("first_step_s", "second_step_s", "misses")
    first_s, second_s, misses = [float(await notebook.kernel.evaluate(name)) for name in names]
    return Run(first_s, second_s, int(misses))


if __name__ == "__main__":
    main()
