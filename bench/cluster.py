"""A cluster of three Docker hosts: times of a server start, a cell and a training step, against one machine.

`up` makes the cluster on a lab of real Docker Engines (tests/lab) that have the images. Starts and cells are
compared with the cluster that `./run` makes. Both are measured in turn on the same machine, whose cores all
nodes share, so only differences and ratios are meaningful. Prints the phases of a start, a cell and `up`,
and one line per target.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import statistics
import sys
import tempfile
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

from launch import STEP
from notebook import Cluster, Notebook, Timing, running_cluster
from parts.cluster_lab import BenchCluster, lab_cluster, stage
from parts.cluster_memory import JOBS, SERVERS, Memory, counted_mb, local_mb, measure_memory
from parts.cluster_start import Start, start_to_usable
from parts.cluster_wire import LINK_MBIT, NODES, Wire, measure_wire
from parts.targets import Target, close

from minicluster_hub.launch.visitor import Visitor
from minicluster_hub.login.accounts_file import FIRST_USER

KEEP_WARM_S = 3.0
COLD_BOUND_S = 2.5
WARM_BOUND_S = 0.15
SENT_BOUND = 1.10
# No published bounds exist for these: each is slightly above the measured value, to detect regressions.
START_BOUND = 2.0
UP_BOUND_S = 15.0
UP_AGAIN_BOUND_S = 6.0
STEP_BOUND = 1.5
MEMORY_BOUND_MB = 300.0
GROWTH_BOUND_MB = 30.0
EMPTY, FULL = "three hosts, one server", f"with {SERVERS} servers, {JOBS} jobs"
PLACES = {"local": "one machine (./run)", "swarm": "three Docker hosts"}


@dataclass
class Figures:
    """All results of a run, one per round. starts: by cluster. cells: by cluster, and "cold" or "warm"."""

    load: float = 0.0
    up_s: float = 0.0
    up_again_s: float = 0.0
    up_said: list[str] = field(default_factory=list)
    starts: dict[str, list[Start]] = field(default_factory=lambda: defaultdict(list))
    cells: dict[tuple[str, str], list[Timing]] = field(default_factory=lambda: defaultdict(list))
    wire: Wire | None = None
    memory: dict[str, Memory] = field(default_factory=dict)

    def cell_s(self, place: str, kind: str) -> list[float]:
        return [cell.done_s for cell in self.cells[place, kind]]

    def above_local_s(self, kind: str) -> float:
        """Return how many seconds longer a cell takes here than on one machine."""
        return statistics.median(self.cell_s("swarm", kind)) - statistics.median(self.cell_s("local", kind))

    def page_s(self, place: str) -> list[float]:
        return [start.page_s for start in self.starts[place]]

    def start_s(self, place: str) -> list[float]:
        return [start.kernel_s for start in self.starts[place]]

    def start_ratio(self) -> float:
        return statistics.median(self.start_s("swarm")) / statistics.median(self.start_s("local"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="starts and cells of each; the median counts")
    parser.add_argument(
        "--lab", metavar="NAME", help="a standing lab without a Swarm, instead of one of its own"
    )
    options = parser.parse_args()
    # The lab's hosts are removed only if this process exits normally.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by a signal"))
    figures = Figures()
    with (
        tempfile.TemporaryDirectory(prefix="minicluster-bench-") as folder,
        lab_cluster(options.lab, Path(folder), KEEP_WARM_S) as cluster,
    ):
        figures.load = os.getloadavg()[0]
        make(cluster, figures)
        with running_cluster(Path(folder), (f"--keep-warm-s={KEEP_WARM_S:g}",)) as local:
            asyncio.run(in_turn(cluster, local, options.rounds, figures))
        asyncio.run(alone(cluster, figures))
        show(figures)
    close(targets(figures))


def show(figures: Figures) -> None:
    """Print all results except the targets."""
    print(f"load before: {figures.load:.1f}\n\n{table(figures)}")
    print(f"\nWhere the time of `up` goes ({figures.up_s:.1f} s)", *figures.up_said, sep="\n  ")
    for (place, kind), measured in figures.cells.items():
        title = f"\nWhere the time goes, {PLACES[place]}, {kind} (ms since the cell was sent)"
        print(title, *measured[-1].timeline, sep="\n  ")
    print(flush=True)


def make(cluster: BenchCluster, figures: Figures) -> None:
    """Run `up`, run it again, and join the other machines."""
    stage("up, and up again")
    figures.up_s, output = cluster.timed_up()
    figures.up_said = [line.strip() for line in output.partition("\n\n")[0].splitlines()]
    figures.up_again_s, output = cluster.timed_up()
    if "nothing was changed" not in output:
        raise SystemExit(f"a second `up` changed something:\n{output}")
    cluster.join()


async def in_turn(cluster: BenchCluster, local: Cluster, rounds: int, figures: Figures) -> None:
    """Measure starts and cells on both clusters in turn."""
    async with (
        Visitor(local.hub.settings.url, FIRST_USER) as one,
        Visitor(cluster.url, FIRST_USER, verify=False) as three,
    ):
        await one.log_in(local.password)
        await three.log_in(cluster.password)
        stage("starts of notebook servers")
        for number in range(1 + rounds):
            for place, visitor in (("local", one), ("swarm", three)):
                start = await start_to_usable(visitor)
                if number:  # the first start creates the home
                    figures.starts[place].append(start)
    async with local.notebook() as one, cluster.notebook() as three:
        stage("cells, cold and warm")
        await one.kernel.run("import torch")
        await three.kernel.run("import torch")
        await cells(cluster, one, three, Figures())  # warm-up: the first run reads files from disk
        for _ in range(rounds):
            await cells(cluster, one, three, figures)
        figures.memory["one machine"] = await local_mb(local)


async def cells(cluster: BenchCluster, one: Notebook, three: Notebook, figures: Figures) -> None:
    """Time a cold cell and the next one on both clusters, without gangs of earlier cells."""
    for place, notebook in (("local", one), ("swarm", three)):
        await one.until_idle()
        await three.until_idle()
        await asyncio.to_thread(cluster.wait_no_tasks)
        for kind in ("cold", "warm"):
            figures.cells[place, kind].append(await notebook.time_cell(NODES, STEP))
    cold = figures.cells["swarm", "cold"][-1]
    cold.timeline.extend(await asyncio.to_thread(cluster.container_times, cold.began))
    cold.timeline.sort(key=lambda line: float(line.split()[0]))


async def alone(cluster: BenchCluster, figures: Figures) -> None:
    """Measure bytes on the wire, then memory, without a peer. Memory is last: it starts many servers."""
    async with cluster.notebook() as notebook:
        stage(f"training on links of {LINK_MBIT} Mbit/s")
        figures.wire = await measure_wire(cluster.lab, notebook)
        stage(f"{SERVERS} notebook servers and {JOBS} jobs")
        figures.memory[EMPTY], figures.memory[FULL] = await measure_memory(cluster, notebook)


def table(figures: Figures) -> str:
    rows = [f"{'seconds (median; least to most)':44}{'one machine':>24}{'three hosts':>24}"]
    for name, found in {
        "click on start to JupyterLab's page": figures.page_s,
        "click on start to a kernel's answer": figures.start_s,
        "cell to first step on 3 nodes, cold": lambda place: figures.cell_s(place, "cold"),
        "cell to first step on 3 nodes, warm": lambda place: figures.cell_s(place, "warm"),
    }.items():
        rows.append(f"{name:44}" + "".join(f"{spread(found(place)):>24}" for place in PLACES))
    rows += ["", *(figures.wire.lines() if figures.wire else ()), ""]
    rows.append(f"{'resident MB':20}" + "".join(f"{when:>32}" for when in figures.memory))
    for part in figures.memory["one machine"]:
        rows.append(f"{part:20}" + "".join(f"{memory[part]:>32.1f}" for memory in figures.memory.values()))
    return "\n".join(rows)


def spread(values: list[float]) -> str:
    return f"{statistics.median(values):.3f} ({min(values):.2f} to {max(values):.2f})"


def targets(figures: Figures) -> list[Target]:
    assert figures.wire
    memory_mb = {when: counted_mb(memory) for when, memory in figures.memory.items()}
    return [
        Target("cluster_start_ratio", figures.start_ratio(), START_BOUND),
        Target("cluster_cold_above_local_s", figures.above_local_s("cold"), COLD_BOUND_S),
        Target("cluster_warm_above_local_s", figures.above_local_s("warm"), WARM_BOUND_S),
        Target("cluster_up_s", figures.up_s, UP_BOUND_S),
        Target("cluster_up_again_s", figures.up_again_s, UP_AGAIN_BOUND_S),
        Target("cluster_sent_ratio", figures.wire.sent_ratio, SENT_BOUND),
        Target("cluster_step_ratio", figures.wire.step_ratio, STEP_BOUND),
        Target("cluster_memory_mb", memory_mb[FULL], MEMORY_BOUND_MB),
        Target("cluster_memory_growth_mb", memory_mb[FULL] - memory_mb[EMPTY], GROWTH_BOUND_MB),
    ]


if __name__ == "__main__":
    main()
