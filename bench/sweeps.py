"""What a trial costs beyond its cell, and 40 trials over three nodes against a loop by hand.

The cell asks for two parameters and logs. Its cost is measured on a cluster of one node, whose gang is warm:
there one trial runs after the other. Against the loop, the cell also waits as long as a short training; the
peer is the same cell in a loop over %%distribute --nodes 1, with parameters drawn in the notebook. The path
is complete: a kernel, the hub's proxy, the job service, agents, ranks. The gangs are warm for both.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

from notebook import Cluster, Notebook, running_cluster
from parts.targets import Target, close

OVERHEAD_BOUND_S = 0.15
RATIO_BOUND = 0.6
NODES = 3
T = TypeVar("T")
TRAINING = "import time\ntime.sleep({cell_s})\n"
SWEEP = """%%sweep --metric loss --trials {trials} --prune none --plain
import minicluster as mc
x, width = mc.suggest("x", -2.0, 2.0), mc.suggest("width", [32, 64, 128])
{training}mc.log(step=0, loss=(x - 1) ** 2)
"""
LOOP = """
import random
def one(x):
    get_ipython().run_cell_magic("distribute", "--nodes 1 --plain --pull loss", {cell!r})
for number in range({trials}):
    x = random.uniform(-2, 2)
    one(x)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=40)
    parser.add_argument("--cell-s", type=float, default=0.5, help="seconds of each trial's training")
    given = parser.parse_args()
    overhead_s = on_cluster(1, lambda notebook: one_by_one(notebook, given.trials))
    sweep_s, loop_s = on_cluster(NODES, lambda notebook: both(notebook, given.trials, given.cell_s))
    print(f"a sweep: {sweep_s:.3f} s\na loop by hand: {loop_s:.3f} s", flush=True)
    close(
        [
            Target("sweep_overhead_s", overhead_s, OVERHEAD_BOUND_S),
            Target("sweep_ratio", sweep_s / loop_s, RATIO_BOUND),
        ]
    )


def on_cluster(nodes: int, measure: Callable[[Notebook], Awaitable[T]]) -> T:
    """Return what is measured in a notebook of a new cluster."""

    async def in_notebook(cluster: Cluster) -> T:
        async with cluster.notebook() as notebook:
            # The first sweep starts the gangs and imports Optuna.
            await notebook.run(SWEEP.format(trials=2 * nodes, training=""))
            return await measure(notebook)

    with (
        tempfile.TemporaryDirectory(prefix="minicluster-bench-") as folder,
        running_cluster(Path(folder), nodes=nodes) as cluster,
    ):
        return asyncio.run(in_notebook(cluster))


async def one_by_one(notebook: Notebook, trials: int) -> float:
    """Return the seconds of a trial with an empty cell."""
    return await timed(notebook, SWEEP.format(trials=trials, training="")) / trials


async def both(notebook: Notebook, trials: int, cell_s: float) -> tuple[float, float]:
    """Return the seconds of a sweep and of the loop by hand."""
    training = TRAINING.format(cell_s=cell_s)
    sweep_s = await timed(notebook, SWEEP.format(trials=trials, training=training))
    cell = f"{training}loss = (x - 1) ** 2"
    return sweep_s, await timed(notebook, LOOP.format(trials=trials, cell=cell))


async def timed(notebook: Notebook, source: str) -> float:
    began = time.monotonic()
    await notebook.run(source)
    return time.monotonic() - began


if __name__ == "__main__":
    main()
