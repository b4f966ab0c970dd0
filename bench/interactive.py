"""Small cells on ranks that stay: a no-op, a DDP step, 1,000 cells in a row, and peers in the same run.

The path is complete: a kernel of a user's notebook server, the magic, the hub's proxy, the job service, the
agents of three nodes, a rank on each. The peers have neither a queue nor isolation: ipyparallel's engines and
nbdistributed's workers are processes of one machine, from `.venv/bin/pip install ipyparallel nbdistributed`.
A script under torchrun is the peer of a step. Prints one line per target.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import psutil
from notebook import Notebook, running_cluster
from parts.peer_runs import PEERS, run_peer
from parts.targets import Target, close

RANKS = 3
P50_BOUND_MS, P99_BOUND_MS = 25.0, 80.0
STEP_BOUND = 1.1
GROWTH_BOUND_MB = 8.0
GROWTH_BOUND_FILES = 5
"""Connections come and go; what each cell left would be a thousand."""
# Timed within the kernel: its messages to this program are no part of a cell.
TIMED = """
import time
_times = []
for _ in range({cells}):
    _began = time.perf_counter()
    get_ipython().run_cell_magic("distribute", "", "pass")
    _times.append(time.perf_counter() - _began)
"""


@dataclass(frozen=True)
class Held:
    """What a process holds. A file that is open is one in Linux's sense."""

    memory_mb: float
    files: int


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cells", type=int, default=200, help="no-ops that are timed")
    parser.add_argument("--in-a-row", type=int, default=1000, help="cells of which nothing may be left")
    given = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="minicluster-bench-") as folder,
        running_cluster(Path(folder), nodes=RANKS) as cluster,
    ):
        targets = asyncio.run(measure(cluster, given.cells, given.in_a_row))
    close(targets)


async def measure(cluster, cells: int, in_a_row: int) -> list[Target]:
    async with cluster.notebook() as notebook:
        await notebook.run(f"%distribute up --nodes {RANKS} --plain")
        # The first cells import what the path needs.
        await no_ops(notebook, 20)
        for name in ("ipyparallel", "nbdistributed"):
            print_times(name, await asyncio.to_thread(peer_times, name, cells))
        times_ms = await no_ops(notebook, cells)
        print_times("%distribute up", times_ms)
        step_s, script_s = await step_times(notebook)
        print(f"a DDP step: {step_s * 1e3:.2f} ms; in a script {script_s * 1e3:.2f} ms")
        grown, files = await growth(notebook, in_a_row)
    return [
        Target("no_op_p50_ms", percentile(times_ms, 50), P50_BOUND_MS),
        Target("no_op_p99_ms", percentile(times_ms, 99), P99_BOUND_MS),
        Target("ddp_step_ratio", step_s / script_s, STEP_BOUND),
        Target("growth_mb", grown, GROWTH_BOUND_MB),
        Target("growth_files", files, GROWTH_BOUND_FILES),
    ]


async def no_ops(notebook: Notebook, cells: int) -> list[float]:
    """Return the milliseconds of each of so many cells that do nothing."""
    before = await cells_so_far(notebook)
    await notebook.run(TIMED.format(cells=cells))
    assert await cells_so_far(notebook) == before + cells, "some cells did not run"
    return [1e3 * seconds for seconds in json.loads(await notebook.kernel.evaluate("_times"))]


async def cells_so_far(notebook: Notebook) -> int:
    """Return how many cells the session has run."""
    (session,) = (await notebook.ask_service("api/jobs?limit=1"))["jobs"]
    cell = await notebook.ask_service(f"api/jobs/{session['id']}/cells")
    assert cell["state"] == "succeeded", cell
    return cell["number"]


def peer_times(name: str, cells: int, tries: int = 3) -> list[float]:
    """Return the milliseconds of a peer's cells; it is tried again when it fails, then named."""
    command = [sys.executable, str(PEERS / "interactive_cells.py"), name, str(RANKS), str(cells)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    found = re.findall(r"^took ([\d.]+)$", done.stdout, re.MULTILINE)
    if len(found) == cells:
        return [1e3 * float(seconds) for seconds in found]
    if tries == 1:
        print(f"{name} failed again and again: {done.stderr[-500:] or done.stdout[-500:]}")
        return []
    return peer_times(name, cells, tries - 1)


async def step_times(notebook: Notebook) -> tuple[float, float]:
    """Return the seconds of a DDP step in a session and in a script: medians of runs in turn."""
    source = (PEERS / "ddp_steps.py").read_text()
    ours, theirs = [], []
    for _ in range(3):
        await notebook.run(f"%%distribute --pull step_s\n{source}")
        ours.append(float(await notebook.kernel.evaluate("step_s")))
        theirs.append(await asyncio.to_thread(script_step))
    return statistics.median(ours), statistics.median(theirs)


def script_step() -> float:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={RANKS}"]
    _, output = run_peer([*torchrun, "ddp_steps.py"])
    return statistics.median(map(float, re.findall(r"step ([\d.]+)", output)))


async def growth(notebook: Notebook, cells: int) -> tuple[float, int]:
    """Return by how many MB, and how many open files, the processes of the path have grown in so many cells.

    The largest growth of a single process counts. What grows once and then stays does so in as many cells
    before.
    """
    await no_ops(notebook, cells)
    before = held()
    await no_ops(notebook, cells)
    after = held()
    living = before.keys() & after.keys()
    return (
        max(after[pid].memory_mb - before[pid].memory_mb for pid in living),
        max(after[pid].files - before[pid].files for pid in living),
    )


def held() -> dict[int, Held]:
    """Return what each process of the cluster holds: the service, the agents, the ranks, the kernel."""
    found = {}
    for process in psutil.Process(os.getpid()).children(recursive=True):
        with process.oneshot():
            found[process.pid] = Held(process.memory_info().rss / 2**20, process.num_fds())
    return found


def percentile(values: list[float], percent: int) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, len(ordered) * percent // 100)]


def print_times(name: str, times_ms: list[float]) -> None:
    if times_ms:
        print(
            f"{name}: p50 {percentile(times_ms, 50):.1f} ms, p99 {percentile(times_ms, 99):.1f} ms",
            flush=True,
        )


if __name__ == "__main__":
    main()
