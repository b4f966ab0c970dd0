"""From a cell to its first DDP step on Slurm: cold, warm, against `sbatch` with torchrun, and locally.

A Slurm with three nodes is started on this machine (tests/slurm/daemons.py); only ratios are meaningful. By
hand means: one `sbatch -N 3`, whose script runs one torchrun on each node by srun. Slurm takes its time in
both ways, since its scheduler looks at the queue every so often. Prints a table and one line per target.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

from launch import NOTHING, STEP, latest
from notebook import Notebook, running_cluster
from parts.peer_runs import PEERS
from parts.targets import Target, close

sys.path.append(str(Path(__file__).resolve().parents[1]))
from tests.slurm.daemons import SlurmDaemons, free_ports, lacking

RANKS = 3
BY_HAND_BOUND = 1.3
"""A cold cell against sbatch and torchrun by hand."""
WARM_BOUND = 1.5
"""A warm cell on Slurm against one on the engine `local`: Slurm has no part in it."""
SCRIPT = """#!/bin/bash
srun --export=ALL {python} -m torch.distributed.run --nnodes={ranks} --nproc-per-node=1 \\
    --rdzv-backend=c10d --rdzv-endpoint=127.0.0.1:{port} --rdzv-id=$SLURM_JOB_ID ddp_step.py step
"""
OPTIONS = """
c = get_config()
c.SlurmEngine.slurm_conf = {conf!r}
c.SlurmEngine.tmp_dir = {folder!r}
"""
PAUSE_S = 1.0

Times = dict[str, list[float]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="measurements of each; the median counts")
    rounds = parser.parse_args().rounds
    if reason := lacking():
        raise SystemExit(f"this machine has {reason}")
    slurm, times = SlurmDaemons(), defaultdict[str, list[float]](list)
    try:
        slurm.start()
        with tempfile.TemporaryDirectory(prefix="minicluster-bench-") as folder:
            asyncio.run(on_slurm(slurm, Path(folder), rounds, times))
            for _ in range(rounds):
                times["sbatch and torchrun by hand"].append(by_hand(slurm, Path(folder)))
        with tempfile.TemporaryDirectory(prefix="minicluster-bench-") as folder:
            asyncio.run(on_processes(Path(folder), rounds, times))
    finally:
        slurm.stop()
    medians = {name: statistics.median(found) for name, found in times.items()}
    print("\n".join(f"{name:40} {seconds:8.3f} s" for name, seconds in medians.items()))
    more_s = medians["slurm, cold"] - medians["local, cold"]
    print(f"\na cold cell on Slurm takes {more_s:.3f} s more than locally")
    cold = medians["slurm, cold"] / medians["sbatch and torchrun by hand"]
    warm = medians["slurm, warm"] / medians["local, warm"]
    found = ("slurm_cold_to_by_hand", cold, BY_HAND_BOUND), ("slurm_warm_to_local_warm", warm, WARM_BOUND)
    close(Target(*one) for one in found)


async def on_slurm(slurm: SlurmDaemons, folder: Path, rounds: int, times: Times) -> None:
    file = folder / "service_config.py"
    file.write_text(OPTIONS.format(conf=str(slurm.conf), folder=str(folder)))
    with running_cluster(folder, ("--keep-warm-s=3", f"--config={file}"), engine="slurm") as cluster:
        async with cluster.notebook() as notebook:
            await cells(notebook, "slurm", rounds, times, slurm.wait_idle)


async def on_processes(folder: Path, rounds: int, times: Times) -> None:
    with running_cluster(folder, ("--keep-warm-s=3",)) as cluster:
        async with cluster.notebook() as notebook:
            await cells(notebook, "local", rounds, times)


async def cells(
    notebook: Notebook, name: str, rounds: int, times: Times, wait_idle: Callable[[], None] = lambda: None
) -> None:
    """Time a cold cell, a warm one, and a warm one that does nothing, each time on idle nodes.

    wait_idle: waits for the nodes themselves, when no gang is left. At the end the nodes are idle, too.
    """
    await notebook.kernel.run("import torch")
    for _ in range(rounds):
        times[f"{name}, cold"].append((await notebook.time_cell(RANKS, STEP)).done_s)
        for what, source in (("warm", STEP), ("warm no-op", NOTHING)):
            await asyncio.sleep(PAUSE_S)
            times[f"{name}, {what}"].append((await notebook.time_cell(RANKS, source)).done_s)
        await notebook.until_idle()
        await asyncio.to_thread(wait_idle)


def by_hand(slurm: SlurmDaemons, folder: Path) -> float:
    """Submit a script that runs torchrun on three nodes; return the seconds until all ranks are done."""
    script, output = folder / "step.sh", folder / "step.out"
    output.unlink(missing_ok=True)
    port, _ = free_ports(1)
    slurm.wait_idle()
    script.write_text(SCRIPT.format(python=sys.executable, ranks=RANKS, port=port))
    began = time.time()
    slurm.run(
        "sbatch", "--wait", "-N", str(RANKS), "--ntasks-per-node=1", "--exclusive",
        f"--chdir={PEERS}", f"--output={output}", str(script), timeout_s=300,
    )  # fmt: skip
    return latest(output.read_text(), RANKS) - began


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
