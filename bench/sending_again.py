"""A cell with a model of 400 MB, and the next cell with the same model: unchanged parts are not sent again.

Measures the seconds from sending a cell until rank 0 has all names; the gang is warm for both. The path is
complete: a kernel, the hub's proxy, the job service, agents, ranks.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
from pathlib import Path

from notebook import Notebook, running_cluster
from parts.targets import Target, close

RATIO_BOUND = 0.7
AGAIN_BOUND_S = 2.0
SIDE = 1000
MODEL = "import torch\nmodel = torch.nn.ParameterList(torch.randn({side}, {side}) for _ in range({layers}))"
CELL = "import time\nassert len(model)\ndone = time.time()"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mb", type=int, default=400, help="of the model")
    parser.add_argument("--rounds", type=int, default=3, help="measurements of each; the median counts")
    parser.add_argument("--nodes", type=int, default=2)
    given = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="minicluster-bench-") as folder,
        running_cluster(Path(folder)) as cluster,
    ):
        found = asyncio.run(measure(cluster, given.mb, given.nodes, given.rounds))
    for first_s, again_s in found:
        print(f"{given.mb} MB to {given.nodes} nodes: first {first_s:.2f} s, again {again_s:.2f} s")
    close(targets(found))


async def measure(cluster, mb: int, nodes: int, rounds: int) -> list[tuple[float, float]]:
    async with cluster.notebook() as notebook:
        await notebook.time_cell(nodes, "import time\ndone = time.time()")
        return [await first_and_again(notebook, mb, nodes) for _ in range(rounds)]


async def first_and_again(notebook: Notebook, mb: int, nodes: int) -> tuple[float, float]:
    # A matrix has 4 bytes for each number.
    await notebook.run(MODEL.format(side=SIDE, layers=mb * 1_000_000 // (4 * SIDE * SIDE)))
    first = await notebook.time_cell(nodes, CELL)
    again = await notebook.time_cell(nodes, CELL)
    return first.done_s, again.done_s


def targets(found: list[tuple[float, float]]) -> list[Target]:
    again_s = statistics.median(again for _, again in found)
    return [
        Target("sending_again_ratio", again_s / statistics.median(first for first, _ in found), RATIO_BOUND),
        Target("sending_again_s", again_s, AGAIN_BOUND_S),
    ]


if __name__ == "__main__":
    main()
