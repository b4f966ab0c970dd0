"""Each policy's gain over strict FIFO in the simulator, as ratios on the same jobs.

Strict FIFO uses the placement `pack`; the others use `locality`, the best one for them here. Spread, dltap
and locality are compared under FIFO, which moves no jobs, and under LAS, which may. Jobs come from traces of
a small lab (`--trace FILE`, repeatable; `--burst FILE` if all arrive at once); else they are random.
Pollux's workloads (`--pollux`, 16 nodes with 4 GPUs each) have measured profiles instead of a speed-up law.
Philly's trace (`--philly`) measures the simulator's speed, which is also printed for one replay of 300 jobs;
only that figure depends on the machine.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean

from parts.targets import Target, close

from minicluster_hub.scheduling.planning.ageing import AGE_BOUND_S
from minicluster_hub.scheduling.policies import POLICIES
from minicluster_hub.simulator.compare import Row, Setting, compare, replay
from minicluster_hub.simulator.results import legend, table
from minicluster_hub.simulator.traces import read
from minicluster_hub.simulator.traces.synthetic import Lab, draw
from minicluster_hub.simulator.workload import Shape, TracedJob

LAB = Setting(Shape(3, 4))
POLLUX = Setting(Shape(16, 4))
PHILLY_NODES = 100
SEEDS = (0, 1, 2)
"""Seeds of random jobs."""
TIMES_FASTER = {"backfill": 3, "las": 4, "srtf": 6, "elastic_fifo": 5, "fair_share": 4}
TUNED_RIGID = ("backfill", "las", "srtf")
PUBLISHED_GAIN = 0.37
"""Pollux's gain in average completion time over the better of two tuned rigid schedulers."""
CROSS_NODE = ("spread", "dltap", "locality")
Traces = Sequence[Sequence[TracedJob]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    for option in ("--trace", "--burst", "--pollux"):
        parser.add_argument(option, action="append", type=Path, default=[], metavar="FILE")
    parser.add_argument("--philly", type=Path, metavar="FILE")
    parser.add_argument("--philly-nodes", type=int, default=PHILLY_NODES, help="with 8 GPUs each")
    chosen = parser.parse_args()
    traces = [read(path) for path in chosen.trace] or [draw(Lab(), seed) for seed in SEEDS]
    bursts = [read(path) for path in chosen.burst] or [
        draw(Lab(jobs=60, load=0, longest_s=3 * 3600), seed) for seed in SEEDS
    ]
    targets = [*on_a_lab(traces), *in_a_burst(bursts), *speed(traces[0])]
    if chosen.pollux:
        targets += on_pollux([read(path) for path in chosen.pollux])
    if chosen.philly:
        targets += on_philly(chosen.philly, chosen.philly_nodes)
    print("", *legend(), "", "Assumed:", *LAB.model.stated(), sep="\n")
    close(targets)


def on_a_lab(traces: Traces) -> Iterator[Target]:
    fifo = next(compare(traces, ["fifo"], ["pack"], LAB))
    others = [name for name in POLICIES if name != "round_robin"]
    rows = {row.policy: row for row in compare(traces, others, ["locality"], LAB)}
    turns = list(compare(traces, ["round_robin"], ["round_robin"], LAB))
    show("A lab of 3 nodes with 4 GPUs", [fifo, *turns, *rows.values()])
    average_s = mean(fifo, "average_s")
    for name, times in TIMES_FASTER.items():
        yield target(f"{name}_times_fifo", average_s / mean(rows[name], "average_s"), times, at_most=False)
    elastic = mean(rows["elastic_fifo"], "makespan_s") / mean(fifo, "makespan_s")
    yield target("elastic_fifo_makespan_over_fifo", elastic, 0.85)
    yield target("time_slice_jain_sizes", mean(rows["time_slice"], "jain_sizes"), 0.95, at_most=False)
    bound_h = max(AGE_BOUND_S, longest_wait_s(fifo)) / 3600
    for name, row in rows.items():
        yield target(f"{name}_longest_wait_h", longest_wait_s(row) / 3600, bound_h)
    yield from by_placement(traces)


def by_placement(traces: Traces) -> Iterator[Target]:
    """Compare network traffic. FIFO has no target, since it cannot move jobs to better nodes."""
    for name in ("fifo", "las"):
        rows = {row.placement: row for row in compare(traces, [name], CROSS_NODE, LAB)}
        show(f"What crosses the network under {name}", list(rows.values()))
    yield target("locality_cross_node", mean(rows["locality"], "crossed"), 0.10)


def in_a_burst(traces: Traces) -> Iterator[Target]:
    fifo = next(compare(traces, ["fifo"], ["pack"], LAB))
    elastic = next(compare(traces, ["elastic_fifo"], ["locality"], LAB))
    show("All at once", [fifo, elastic])
    ratio = mean(elastic, "makespan_s") / mean(fifo, "makespan_s")
    yield target("elastic_fifo_burst_makespan_over_fifo", ratio, 0.75)


def on_pollux(traces: Traces) -> Iterator[Target]:
    """Compare with the best rigid policy; the published gains are over two rigid ones."""
    rigid = list(compare(traces, TUNED_RIGID, ["locality"], POLLUX))
    (goodput,) = compare(traces, ["goodput"], ["locality"], POLLUX)
    show("Pollux's workloads on 16 nodes with 4 GPUs", [*rigid, goodput])
    for row in rigid:
        ratio = mean(goodput, "average_s") / mean(row, "average_s")
        print(f"goodput against {row.policy}: {100 * (ratio - 1):+.0f} % (published: -37 to -50 %)")
        if row.policy == "las":
            yield target("goodput_average_over_las", ratio, 1 - PUBLISHED_GAIN)


def on_philly(path: Path, nodes: int) -> Iterator[Target]:
    jobs = read(path)
    wall_s, cpu_s = took(jobs, Setting(Shape(nodes, 8)))
    print(
        f"\nPhilly: {len(jobs)} jobs on {nodes} nodes with 8 GPUs: {wall_s:.0f} s ({cpu_s:.0f} s of CPU time)"
    )
    yield target("philly_replay_min", wall_s / 60, 10)


def speed(jobs: Sequence[TracedJob]) -> Iterator[Target]:
    wall_s, cpu_s = took(jobs, LAB)
    print(f"\n{len(jobs)} jobs replayed under fifo in {wall_s:.2f} s ({cpu_s:.2f} s of CPU time)")
    yield target("replay_s", wall_s, 1)


def target(name: str, value: float, bound: float, *, at_most: bool = True) -> Target:
    return Target(f"scheduling_{name}", value, bound, at_most)


def took(jobs: Sequence[TracedJob], setting: Setting) -> tuple[float, float]:
    """Return a replay's seconds, and its CPU seconds, which are more reliable on a busy machine."""
    began, cpu = time.perf_counter(), time.process_time()
    replay(jobs, "fifo", "pack", setting)
    return time.perf_counter() - began, time.process_time() - cpu


def mean(row: Row, figure: str) -> float:
    return fmean(getattr(run, figure) for run in row.runs)


def longest_wait_s(row: Row) -> float:
    return max(run.longest_wait_s for run in row.runs)


def show(title: str, rows: Sequence[Row]) -> None:
    print(f"\n{title}, {len(rows[0].runs)} traces", *table(rows), sep="\n")


if __name__ == "__main__":
    main()
