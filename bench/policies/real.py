"""Real trainings under FIFO, Schedulearn's round robin and Elastic FIFO, beside the simulator's predictions.

Short trainings of three kinds, all submitted as `--nodes 1:3`, arrive as a Poisson process at a cluster that
`up` made on three real Docker Engines (tests/lab) with one slot each; policies are activated by REST. First
measures each kind's run times on one, two and three nodes, and the cost of shrinking and growing; from these
the simulator predicts every run. The nodes share the machine's cores, so a step waits as if for a GPU
(real_jobs.py). All jobs have the same owner, so a job can take over the gang of a finished one. Since all
jobs last seconds, idle gangs end at once and jobs may be moved after seconds. A job has at most one slot per
node, so a placement chooses only node names: round robin equals FIFO here, and their difference is noise.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean, stdev

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from notebook import running_cluster
from parts.cluster_lab import lab_cluster, stage
from parts.targets import Target, close
from real_forecast import forecast
from real_jobs import KINDS, Arrival, workload
from real_runs import NODES, Result, activate, lone_s, moves_s, run
from recovery import our_jobs
from tests.lab.jobs import Jobs, administrator

from minicluster_hub.simulator.model import Model

KEEP_WARM_S = 0.2
MIN_RUN_S = 5.0
PLACEMENTS = {"fifo": "pack", "round_robin": "round_robin", "elastic_fifo": "pack"}
SIZES = range(1, NODES + 1)
MOVES = 2
"""How often the training that measures the cost of a move shrinks and grows back."""
FORECAST_BOUND = 0.25
Found = dict[str, list[tuple[Result, Result]]]
"""By policy, for each seed: the predicted and the real result."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--policies", nargs="+", choices=PLACEMENTS, default=list(PLACEMENTS))
    parser.add_argument("--jobs", type=int, default=30)
    parser.add_argument("--load", type=float, default=1.0, help="slot time asked for, in all that there is")
    parser.add_argument("--local", action="store_true", help="one machine's engine instead of three Docker's")
    options = parser.parse_args()
    # The lab's hosts are removed only if this process exits normally.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by a signal"))
    service = _local if options.local else _lab
    with tempfile.TemporaryDirectory(prefix="minicluster-bench-") as folder, service(Path(folder)) as jobs:
        alone_s, model = measure(jobs)
        total_s = options.jobs * fmean(alone_s[kind.name][1] for kind in KINDS)
        span_s = total_s / NODES / options.load
        loads = [workload(seed, options.jobs, span_s) for seed in options.seeds]
        found = compare(jobs, loads, options.policies, alone_s, model)
    show(found, alone_s, model, f"{options.jobs} jobs over some {span_s:.0f} s, {len(loads)} seeds")
    close(targets(found))


@contextmanager
def _lab(folder: Path) -> Iterator[Jobs]:
    with lab_cluster(None, folder, KEEP_WARM_S, gpus=1) as cluster:
        stage("up, and two nodes join")
        cluster.up(*(f"--service-option={option}" for option in _service_options()))
        cluster.join()
        with administrator(cluster) as jobs:
            yield jobs


@contextmanager
def _local(folder: Path) -> Iterator[Jobs]:
    with running_cluster(folder, _service_options()) as cluster, our_jobs(cluster) as jobs:
        yield jobs


def _service_options() -> tuple[str, ...]:
    return f"--MiniclusterHub.keep_warm_s={KEEP_WARM_S:g}", f"--MiniclusterHub.min_run_s={MIN_RUN_S:g}"


def measure(jobs: Jobs) -> tuple[dict[str, dict[int, float]], Model]:
    """Return each kind's run time alone on each number of nodes, and the cost of a move."""
    activate(jobs, "fifo", "pack")
    alone_s: dict[str, dict[int, float]] = {}
    for kind in KINDS:
        alone_s[kind.name] = {nodes: lone_s(jobs, kind, nodes) for nodes in SIZES}
        stage(f"{kind.name}: " + ", ".join(f"{s:.1f} s on {n}" for n, s in alone_s[kind.name].items()))
    activate(jobs, "elastic_fifo", "pack")
    costs_s = moves_s(jobs, MOVES)
    stage("changes of size cost " + ", ".join(f"{cost_s:.1f} s" for cost_s in costs_s))
    return alone_s, Model(restart_s=fmean(costs_s), min_run_s=MIN_RUN_S)


def compare(
    jobs: Jobs,
    loads: Sequence[Sequence[Arrival]],
    policies: Sequence[str],
    alone_s: Mapping[str, Mapping[int, float]],
    model: Model,
) -> Found:
    """Predict and run each workload under each policy in turn."""
    found: Found = defaultdict(list)
    for number, arrivals in enumerate(loads, 1):
        for name in policies:
            placement = PLACEMENTS[name]
            expected = forecast(arrivals, alone_s, (name, placement), model)
            activate(jobs, name, placement)
            real = run(jobs, arrivals)
            found[name].append((expected, real))
            stage(f"{name}, workload {number}: {real}; predicted {expected}")
    return found


def show(found: Found, alone_s: Mapping[str, Mapping[int, float]], model: Model, what: str) -> None:
    print(f"Run times in a queue, in seconds on {', '.join(map(str, SIZES))} nodes")
    for name, by_nodes in alone_s.items():
        print(f"{name:16}" + "".join(f"{by_nodes[nodes]:9.1f}" for nodes in SIZES))
    print(f"A change of size costs {model.restart_s:.1f} s; who started keeps its slots for {MIN_RUN_S:g} s.")
    print(f"\n{what}: mean and standard deviation")
    heads = ("makespan s", "predicted", "turnaround s", "predicted", "moves a job", "predicted")
    print(f"{'':16}" + "".join(f"{head:>16}" for head in heads))
    for name, runs in found.items():
        cells = []
        for figure in ("makespan_s", "turnaround_s", "moves"):
            expected, real = ([getattr(one, figure) for one in column] for column in zip(*runs, strict=True))
            cells += [_spread(real), _spread(expected)]
        print(f"{name:16}" + "".join(f"{cell:>16}" for cell in cells))
    print(flush=True)


def _spread(values: Sequence[float]) -> str:
    deviation = stdev(values) if len(values) > 1 else 0.0
    return f"{fmean(values):.1f} +- {deviation:.1f}"


def targets(found: Found) -> Iterator[Target]:
    """Yield the targets; the bounds are ours, since none are published for such a cluster."""
    if {"fifo", "elastic_fifo"} <= found.keys():
        for figure in ("makespan_s", "turnaround_s"):
            ratio = _real(found, "elastic_fifo", figure) / _real(found, "fifo", figure)
            yield Target(f"scheduling_real_elastic_fifo_{figure[:-2]}_over_fifo", ratio, 1.0)
    for name, runs in found.items():
        for figure in ("makespan_s", "turnaround_s"):
            expected = fmean(getattr(one, figure) for one, _ in runs)
            off = abs(expected / _real(found, name, figure) - 1)
            yield Target(f"scheduling_real_{name}_{figure[:-2]}_off", off, FORECAST_BOUND)


def _real(found: Found, name: str, figure: str) -> float:
    return fmean(getattr(real, figure) for _, real in found[name])


if __name__ == "__main__":
    main()
