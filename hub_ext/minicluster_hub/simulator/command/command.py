"""From the arguments to the table: replays, figures, and beside them what was assumed."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from minicluster_hub.scheduling.own import PolicyFailed
from minicluster_hub.simulator.command.files import TraceFile
from minicluster_hub.simulator.command.options import parse, setting
from minicluster_hub.simulator.command.plots import PlotImpossible, plot
from minicluster_hub.simulator.command.table import legend, table
from minicluster_hub.simulator.compare import compare, too_large
from minicluster_hub.simulator.replay import SimulationStuck
from minicluster_hub.simulator.traces import TraceDamaged, TraceUnknown, read
from minicluster_hub.simulator.traces.synthetic import Lab, draw
from minicluster_hub.simulator.work import Shape, TracedJob


def run(arguments: Sequence[str]) -> int:
    """Do what the arguments ask for; return the exit code."""
    given = parse(arguments)
    try:
        chosen = setting(given)
        traces = _traces(given, chosen.shape)
        _say(*_described(traces, chosen.shape), "")
        if any(len(jobs) == too_large(jobs, chosen.shape) for jobs in traces):
            raise TraceDamaged("there is a trace without a job that these nodes have room for")
        rows = list(compare(traces, given.policies, given.placements, chosen))
        _say(*table(rows), "", *legend(), "", "Assumed:", *chosen.model.stated())
        if given.plot:
            plot(rows, given.plot)
            _say("", f"Drawn into {given.plot}")
    except (OSError, TraceDamaged, SimulationStuck, PlotImpossible, PolicyFailed) as error:
        sys.stderr.write(f"minicluster: {error}\n")
        return 1
    return 0


def _traces(given: argparse.Namespace, shape: Shape) -> list[list[TracedJob]]:
    if given.traces:
        return [_read(path) for path in given.traces]
    lab = Lab(jobs=given.jobs, slots=shape.slots, load=given.load)
    return [draw(lab, seed) for seed in given.seeds]


def _read(path: Path) -> list[TracedJob]:
    try:
        return read(TraceFile(path))
    except (TraceUnknown, TraceDamaged) as error:
        raise TraceDamaged(f"{path}: {error}") from error
    except UnicodeDecodeError as error:
        raise TraceDamaged(f"{path} is no text in UTF-8") from error


def _described(traces: Sequence[Sequence[TracedJob]], shape: Shape) -> list[str]:
    count = sum(len(jobs) for jobs in traces)
    times = "" if len(traces) == 1 else f" in {len(traces)} traces; figures are means ± standard deviation"
    lines = [f"{shape.nodes} nodes with {shape.slots_per_node} GPUs each; {count} jobs{times}"]
    left_out = sum(too_large(jobs, shape) for jobs in traces)
    if left_out:
        lines.append(f"{left_out} of them need more GPUs than there are, and are left out")
    return lines


def _say(*lines: str) -> None:
    sys.stdout.write("".join(f"{line}\n" for line in lines))
