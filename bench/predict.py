"""What `--dry-run` predicts, against what is then measured: memory and time of a step, of five models.

The hosts are network namespaces of this machine; `tc` limits their cables. Each rank has one thread. Hosts
share the machine's cores, so both predict at the same time, and both train at the same time, also for one
host (each by itself). Each round predicts and measures; the fastest of the rounds counts for both. Prints one
line per target. Needs root.
"""

from __future__ import annotations

import argparse
import json
import signal
import statistics
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from parts.priority import network_first, timed_ranks_first
from parts.targets import Target, close
from parts.three_hosts import Hosts, three_hosts

from minicluster.capture.capture import Captured
from minicluster.capture.payload import CellPayload
from minicluster.changes.shared_objects import SharedObjects
from minicluster.dry_run import run
from minicluster.dry_run.cluster import ClusterView
from minicluster.dry_run.predict import Link
from minicluster.dry_run.report import DryRun
from minicluster.dry_run.run import environment, order_of, run_virtual, task_folder
from minicluster.options import CellOptions, parse_cell_line

PEERS = Path(__file__).parent / "peers"
MODELS = ("cnn", "mlp", "transformer", "lstm", "unet")
METHODS = {"ddp": None, "bf16": "bf16", "localsgd": "localsgd"}
LINK = Link(1.0, known=True)
STEPS = 24
"""Steps that are measured: three periods of localsgd."""
TIMING_S = 8.0
"""Shorter than in a notebook: while it lasts, nothing else runs on this machine."""
BOUND = 0.15
_BUNDLE_BYTES = 1 << 20


@dataclass
class Found:
    """Seconds and bytes of one model, by case, from all rounds."""

    predicted: dict[str, list[float]] = field(default_factory=dict[str, list[float]])
    measured: dict[str, list[float]] = field(default_factory=dict[str, list[float]])

    def errors(self) -> Mapping[str, float]:
        least = {case: (min(self.predicted[case]), min(found)) for case, found in self.measured.items()}
        return {case: predicted / measured - 1 for case, (predicted, measured) in least.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="*", default=MODELS)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    run.TIMING_S = TIMING_S
    # What was changed on this machine is set back, whatever ends the bench.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    found = {name: Found() for name in given.models}
    with network_first(), three_hosts() as hosts:
        hosts.set_rate(LINK.gbit_s * 1000)
        for number in range(given.rounds):
            for name in given.models:
                predict(name, found[name])
                measure(hosts, name, found[name])
                print(f"round {number + 1}: {name} {shown(found[name])}", flush=True)
    close(targets(found))


def predict(name: str, found: Found) -> None:
    """Predict on both hosts at the same time."""
    with timed_ranks_first(), ThreadPoolExecutor(2) as pool:
        pair = list(pool.map(dry_run, [name] * 2))
    _note(found.predicted, "1 host", max(one.predict("ddp", 1).step_s for one in pair))
    for method in METHODS:
        _note(found.predicted, f"2 hosts, {method}", max(one.predict(method, 2).step_s for one in pair))
    _note(found.predicted, "memory", max(one.memory.peak for one in pair))


def dry_run(name: str) -> DryRun:
    """Make a dry run of a cell on two nodes, as `%%distribute --dry-run --nodes 2` does."""
    options: CellOptions = parse_cell_line("--dry-run --nodes 2 --env OMP_NUM_THREADS=1")
    text = f"{(PEERS / 'predict_models.py').read_text()}\ntrain({name!r})"
    captured = Captured(CellPayload(source=text, filename="cell"), SharedObjects({}), {})
    with task_folder(captured, options, _BUNDLE_BYTES) as folder:
        order = order_of(options, 2, 1, is_local=False)
        virtual = run_virtual(folder, order, environment(folder, options, 1))
    return DryRun(virtual.findings, options, ClusterView(), LINK, 1)


def measure(hosts: Hosts, name: str, found: Found) -> None:
    alone = _steps(hosts, name, None, {"WORLD_SIZE": "1", "RANK": "0"})
    _note(found.measured, "1 host", max(statistics.median(rank["step_s"]) for rank in alone))
    for method, comm in METHODS.items():
        ranks = _steps(hosts, name, comm)
        # localsgd averages in some steps only.
        typical = statistics.fmean if method == "localsgd" else statistics.median
        _note(found.measured, f"2 hosts, {method}", max(typical(rank["step_s"]) for rank in ranks))
        if method == "ddp":
            _note(found.measured, "memory", max(rank["growth_bytes"] for rank in ranks))


def _steps(
    hosts: Hosts, name: str, comm: str | None, environ: Mapping[str, str] | None = None
) -> list[dict[str, Any]]:
    words = (name, str(STEPS), *([comm] if comm else []))
    return [json.loads(line) for line in hosts.run(PEERS / "predict_rank.py", words, environ, count=2)]


def shown(found: Found) -> str:
    """Return the errors so far."""
    return ", ".join(f"{case} {error:+.1%}" for case, error in found.errors().items())


def _note(table: dict[str, list[float]], case: str, value: float) -> None:
    table.setdefault(case, []).append(value)


def targets(found: Mapping[str, Found]) -> Sequence[Target]:
    """Return the largest relative error of memory, and that of steps."""
    memory, steps = 0.0, 0.0
    for name, one in found.items():
        for case, error in one.errors().items():
            unit, named = (1e-6, "MB") if case == "memory" else (1e3, "ms")
            figures = [min(table[case]) * unit for table in (one.predicted, one.measured)]
            both = "predicted {:6.0f} measured {:6.0f}".format(*figures)
            print(f"{name:12} {case:18} {both} {named} {error:+.1%}")
            if case == "memory":
                memory = max(memory, abs(error))
            else:
                steps = max(steps, abs(error))
    return [Target("memory_error", memory, BOUND), Target("step_error", steps, BOUND)]


if __name__ == "__main__":
    main()
