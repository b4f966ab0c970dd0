"""Time from submission to the first DDP step on all ranks, and of a no-op: Minicluster, torchrun, accelerate.

Minicluster is measured cold and warm. All are measured in turn, in one run on one machine, so only ratios
are meaningful. Minicluster's path is complete: a kernel of a user's notebook server, the magic, the hub's
proxy, the job service, agents, ranks. Prints a table, the phases of a cell, and one line per target.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import statistics
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from notebook import Cluster, Notebook, running_cluster
from parts.peer_runs import run_peer
from parts.targets import Target, close

COLD_BOUND = 1.3
WARM_BOUND = 0.3
WARM_BOUND_S = 0.2
"""To the first DDP step on three nodes."""
FIRST_BOUND_S = 1.2
"""The same of a notebook's first cell, if it was opened OPENED_S before: its gang is prepared."""
OPENED_S = 10.0
BACK_BOUND_S = 0.06
"""From the end of the last rank's cell until its names are in the notebook."""
WHY_BACK_IS_SHORT = (
    "three ranks and agents, the job service, the proxy and the kernel share this machine's {cores} cores; "
    "docs/speed.md has the way of the names"
)

STEP = """\
import time, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
_model = DistributedDataParallel(torch.nn.Linear(64, 64))
_optimizer = torch.optim.SGD(_model.parameters(), lr=0.01)
_model(torch.randn(8, 64)).sum().backward()
_optimizer.step()
done = torch.tensor([time.time()], dtype=torch.float64)
dist.all_reduce(done, dist.ReduceOp.MAX)
done = done.item()
"""
NOTHING = "import time\ndone = time.time()"
CELLS = {"step": STEP, "no-op": NOTHING}
WARM = [("warm", "step")] * 3 + [("warm", "no-op")]
PAUSE_S = 1.0
"""Before each warm cell: nobody sends the next one sooner. The zygotes use it to make forks faster."""

Times = dict[tuple[str, str, int], list[float]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="measurements of each; the median counts")
    rounds = parser.parse_args().rounds
    times: Times = defaultdict(list)
    timelines: dict[str, list[str]] = {}
    with benched(prepares=False) as cluster:
        asyncio.run(measure(cluster, rounds, times, timelines))
    with benched(prepares=True) as cluster:
        asyncio.run(first_cells(cluster, rounds, times, timelines))
    print(table(times))
    for title, lines in timelines.items():
        print(f"\nWhere the time goes, {title} (ms since the cell was sent)", *lines, sep="\n  ")
    print()
    close(targets(times))


@contextmanager
def benched(*, prepares: bool) -> Iterator[Cluster]:
    with (
        tempfile.TemporaryDirectory(prefix="minicluster-bench-") as folder,
        running_cluster(Path(folder), ("--keep-warm-s=3",), prepares=prepares) as cluster,
    ):
        yield cluster


async def first_cells(cluster: Cluster, rounds: int, times: Times, timelines: dict[str, list[str]]) -> None:
    """Time a notebook's first cell some seconds after its kernel was started."""
    for number in range(rounds):
        async with cluster.notebook(f"first-{number}.ipynb") as notebook:
            await asyncio.sleep(OPENED_S)
            took = await notebook.time_cell(3, STEP)
            times["minicluster first", "step", 3].append(took.done_s)
            timelines["first step, 3 ranks"] = took.timeline
            await notebook.until_idle()


async def measure(cluster, rounds: int, times: Times, timelines: dict[str, list[str]]) -> None:
    async with cluster.notebook() as notebook:
        await notebook.kernel.run("import torch")
        for _ in range(rounds):
            for ranks in (2, 3):
                await ours(notebook, ranks, times, timelines)
                peers(ranks, times)


async def ours(notebook: Notebook, ranks: int, times: Times, timelines: dict[str, list[str]]) -> None:
    """Time a cold cell, then warm ones; wait until the gang is gone."""
    await notebook.until_idle()
    for name, what in (("cold", "step"), *WARM):
        if name == "warm":
            await asyncio.sleep(PAUSE_S)
        took = await notebook.time_cell(ranks, CELLS[what])
        times[f"minicluster {name}", what, ranks].append(took.done_s)
        times[f"minicluster {name}, from its end to names back", what, ranks].append(
            took.back_s - took.done_s
        )
        timelines[f"{name} {what}, {ranks} ranks"] = took.timeline


def peers(ranks: int, times: Times) -> None:
    for what, argument in (("step", "step"), ("no-op", "nothing")):
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        began, output = run_peer([*torchrun, f"--nproc-per-node={ranks}", "ddp_step.py", argument])
        times["torchrun --standalone", what, ranks].append(latest(output, ranks) - began)
        _, output = run_peer([sys.executable, "accelerate_launch.py", argument, str(ranks)])
        submitted = float(re.search(r"submitted ([\d.]+)", output).group(1))
        times["accelerate notebook_launcher", what, ranks].append(latest(output, ranks) - submitted)


def latest(output: str, ranks: int) -> float:
    found = [float(at) for at in re.findall(r"done ([\d.]+)", output)]
    if len(found) != ranks:
        raise SystemExit(f"{len(found)} of {ranks} ranks were done:\n{output}")
    return max(found)


def median(times: Times, name: str, what: str, ranks: int) -> float:
    return statistics.median(times[name, what, ranks])


def table(times: Times) -> str:
    names = list(dict.fromkeys(name for name, _, _ in times))
    columns = [(what, ranks) for what in CELLS for ranks in (2, 3)]
    head = f"{'seconds (median; ratio to torchrun)':44}" + "".join(
        f"{w + f', {r} ranks':>22}" for w, r in columns
    )
    rows = [head]
    for name in names:
        cells = []
        for what, ranks in columns:
            if not times.get((name, what, ranks)):
                cells.append(f"{'':>22}")
                continue
            value = median(times, name, what, ranks)
            ratio = value / median(times, "torchrun --standalone", what, ranks)
            cells.append(f"{f'{value:.3f} ({ratio:.2f})':>22}")
        rows.append(f"{name:38}" + "".join(cells))
    return "\n".join(rows)


def targets(times: Times) -> list[Target]:
    found = []
    for ranks in (2, 3):
        peer = median(times, "torchrun --standalone", "step", ranks)
        for name, bound in (("cold", COLD_BOUND), ("warm", WARM_BOUND)):
            ratio = median(times, f"minicluster {name}", "step", ranks) / peer
            found.append(Target(f"launch_{name}_{ranks}_ranks", ratio, bound))
    warm_s = median(times, "minicluster warm", "step", 3)
    back_s = median(times, "minicluster warm, from its end to names back", "step", 3)
    return [
        *found,
        Target("warm_step_s_3_ranks", warm_s, WARM_BOUND_S),
        Target("first_step_s_3_ranks", median(times, "minicluster first", "step", 3), FIRST_BOUND_S),
        Target("names_back_s_3_ranks", back_s, BACK_BOUND_S, why_short=WHY_BACK_IS_SHORT),
    ]


if __name__ == "__main__":
    main()
