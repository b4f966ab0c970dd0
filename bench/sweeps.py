"""A sweep over three nodes: what a trial costs beyond its cell, and 40 trials against a loop by hand.

The cell asks for two parameters, waits as long as a short training, and logs. The peer is the same cell in a
loop over %%distribute --nodes 1, with parameters drawn in the notebook. The path is complete: a kernel, the
hub's proxy, the job service, agents, ranks. The gangs are warm for both.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from pathlib import Path

from notebook import Notebook, running_cluster
from parts.targets import Target, close

OVERHEAD_BOUND_S = 0.15
RATIO_BOUND = 0.6
NODES = 3
TRAINING = "import time\ntime.sleep({cell_s})\n"
SWEEP = """%%sweep --metric loss --trials {trials} --prune none --plain{more}
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
    with (
        tempfile.TemporaryDirectory(prefix="minicluster-bench-") as folder,
        running_cluster(Path(folder)) as cluster,
    ):
        found = asyncio.run(measure(cluster, given.trials, given.cell_s))
    for name, seconds in found.items():
        print(f"{name}: {seconds:.3f} s")
    print(end="", flush=True)
    close(
        [
            Target("sweep_overhead_s", found["overhead of a trial in a warm gang"], OVERHEAD_BOUND_S),
            Target("sweep_ratio", found["a sweep"] / found["a loop by hand"], RATIO_BOUND),
        ]
    )


async def measure(cluster, trials: int, cell_s: float) -> dict[str, float]:
    async with cluster.notebook() as notebook:
        training = TRAINING.format(cell_s=cell_s)
        # The first sweep starts the gangs and imports Optuna.
        await notebook.run(SWEEP.format(trials=2 * NODES, training=training, more=""))
        alone_s = await timed(notebook, SWEEP.format(trials=10, training="", more=" --at-once 1"))
        sweep_s = await timed(notebook, SWEEP.format(trials=trials, training=training, more=""))
        rows = await notebook.kernel.evaluate("[(r['trial'], r['seconds']) for r in sweep.rows()]")
        cell = f"{training}loss = (x - 1) ** 2"
        loop_s = await timed(notebook, LOOP.format(trials=trials, cell=cell))
    print(f"seconds of each trial's job: {rows}")
    return {
        "one trial after the other, with an empty cell": alone_s / 10,
        "overhead of a trial in a warm gang": (sweep_s * NODES - trials * cell_s) / trials,
        "a sweep": sweep_s,
        "a loop by hand": loop_s,
    }


async def timed(notebook: Notebook, source: str) -> float:
    began = time.monotonic()
    await notebook.run(source)
    return time.monotonic() - began


if __name__ == "__main__":
    main()
