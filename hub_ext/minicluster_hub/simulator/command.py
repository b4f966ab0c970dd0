"""The command `simulate`: replays traces under several policies, and prints the figures and assumptions."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Collection, Sequence
from dataclasses import fields
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

from minicluster_hub.scheduling.own import CustomPlan, PolicyFailed, policy_in
from minicluster_hub.scheduling.placement import PLACEMENTS
from minicluster_hub.scheduling.policies import POLICIES
from minicluster_hub.simulator.compare import Setting, compare, too_large
from minicluster_hub.simulator.model import Model
from minicluster_hub.simulator.replay import SimulationStuck
from minicluster_hub.simulator.results import PlotImpossible, legend, plot, table
from minicluster_hub.simulator.traces import TraceDamaged, TraceUnknown, read
from minicluster_hub.simulator.traces.synthetic import Lab, draw
from minicluster_hub.simulator.workload import Shape, TracedJob

_ABOUT = "Replay jobs under several policies and placements, and print the figures."
_TRACE = (
    "a trace of Philly, Pollux, Muri, Gavel, Tiresias or a lab; with several traces, the figures are means "
    "over all of them; without a trace, random jobs are drawn"
)


def run(arguments: Sequence[str]) -> int:
    """Do what the arguments ask for; return the exit code."""
    given = _parser().parse_args(arguments)
    try:
        setting = _setting(given)
        traces = _traces(given, setting.shape)
        _print(*_described(traces, setting.shape), "")
        if any(len(jobs) == too_large(jobs, setting.shape) for jobs in traces):
            raise TraceDamaged("there is a trace without a job that fits on these nodes")
        rows = list(compare(traces, given.policies, given.placements, setting))
        _print(*table(rows), "", *legend(), "", "Assumed:", *setting.model.stated())
        if given.plot:
            plot(rows, given.plot)
            _print("", f"Drawn into {given.plot}")
    except (OSError, TraceDamaged, SimulationStuck, PlotImpossible, PolicyFailed) as error:
        sys.stderr.write(f"minicluster: {error}\n")
        return 1
    return 0


def _setting(given: argparse.Namespace) -> Setting:
    """Return the chosen cluster and assumptions. Raises PolicyFailed, OSError."""
    numbers = {field.name: getattr(given, field.name) for field in fields(Model)}
    custom = {name: policy_file(Path(name)) for name in given.policies if name not in POLICIES}
    return Setting(Shape(given.nodes, given.gpus), Model(**numbers), custom)


def policy_file(path: Path) -> CustomPlan:
    """Return the policy in a file; it runs in this process. Raises PolicyFailed, OSError."""
    name = f"policy_{path.stem}"
    spec = spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise PolicyFailed(f"{path} is not a Python file; a policy's file name ends with .py")
    module = sys.modules[name] = module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
        return policy_in(module, {})
    except PolicyFailed as failed:
        raise PolicyFailed(f"{path}: {failed}") from failed


def _traces(given: argparse.Namespace, shape: Shape) -> list[list[TracedJob]]:
    if given.traces:
        return [_read(path) for path in given.traces]
    lab = Lab(jobs=given.jobs, slots=shape.slots, load=given.load)
    return [draw(lab, seed) for seed in given.seeds]


def _read(path: Path) -> list[TracedJob]:
    try:
        return read(path)
    except (TraceUnknown, TraceDamaged) as error:
        raise TraceDamaged(f"{path}: {error}") from error
    except UnicodeDecodeError as error:
        raise TraceDamaged(f"{path} is not text in UTF-8") from error


def _described(traces: Sequence[Sequence[TracedJob]], shape: Shape) -> list[str]:
    count = sum(len(jobs) for jobs in traces)
    times = "" if len(traces) == 1 else f" in {len(traces)} traces; figures are means ± standard deviation"
    lines = [f"{shape.nodes} nodes with {shape.slots_per_node} GPUs each; {count} jobs{times}"]
    if left_out := sum(too_large(jobs, shape) for jobs in traces):
        lines.append(f"{left_out} of them need more GPUs than there are; they are left out")
    return lines


def _print(*lines: str) -> None:
    sys.stdout.write("".join(f"{line}\n" for line in lines))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="minicluster simulate", description=_ABOUT)
    add, model = parser.add_argument, Model()
    add("--trace", dest="traces", action="append", type=Path, default=[], metavar="FILE", help=_TRACE)
    add("--jobs", type=_positive, default=300, help="number of random jobs (%(default)s)")
    add("--load", type=float, default=1.0, help="load of the random jobs; 0: all come at once (%(default)s)")
    add("--seeds", type=_numbers, default=[0, 1, 2], help="seeds of the random jobs (0,1,2)")
    add("--nodes", type=_positive, default=3, help="nodes of the cluster (%(default)s)")
    add("--gpus", type=_positive, default=4, help="GPUs of each node (%(default)s)")
    policies, file = ", ".join(POLICIES), "or FILE.py, a policy of your own"
    named = _names(POLICIES, file)
    add("--policy", dest="policies", type=named, default=["fifo"], help=f"{policies}; {file}")
    named, placements = _names(PLACEMENTS), ", ".join(PLACEMENTS)
    add("--placement", dest="placements", type=named, default=["pack"], help=placements)
    add("--plot", type=Path, metavar="FILE", help="draw the figures into it (.svg, .png or .pdf)")
    assume = parser.add_argument_group("assumptions").add_argument
    for name, about in _NUMBERS.items():
        option = f"--{name.replace('_', '-')}"
        assume(option, type=float, default=getattr(model, name), help=f"{about} (%(default)g)")
    assume("--fixed-batch", dest="adapts", action="store_false", help="jobs never adapt their batch size")
    return parser


_NUMBERS = {
    "restart_s": "seconds that a change of slots costs",
    "min_run_s": "least seconds between two changes of a job's slots",
    "exponent": "k slots are k^this as fast",
    "cross_node_efficiency": "speed on several nodes, as a share of that on one",
    "least_share": "fewest slots of an elastic job, as a share of those asked for",
    "most_times": "most slots of an elastic job, in times those asked for",
    "half_life_s": "half-life of an owner's usage, in seconds",
}
"""The options for the model's numbers."""


def _names(known: Collection[str], file: str = "") -> Callable[[str], list[str]]:
    """Return a parser of comma separated names, or `all`. file: help for a FILE.py, if that is allowed."""

    def read_names(text: str) -> list[str]:
        names = list(known) if text == "all" else text.split(",")
        for name in names:
            if name not in known and not (file and name.endswith(".py")):
                there = ", ".join(part for part in ("all", *known, file) if part)
                raise argparse.ArgumentTypeError(f"there is no {name!r}; there are: {there}")
        return names

    return read_names


def _positive(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text}: a number from 1 on")
    return int(text)


def _numbers(text: str) -> list[int]:
    if not all(part.isdigit() for part in text.split(",")):
        raise argparse.ArgumentTypeError(f"{text}: numbers with commas between them, like 0,1,2")
    return [int(part) for part in text.split(",")]
