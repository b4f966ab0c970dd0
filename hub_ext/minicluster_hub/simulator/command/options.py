"""What `minicluster simulate` can be told."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Collection, Sequence
from dataclasses import fields
from pathlib import Path

from minicluster_hub.scheduling.placement import PLACEMENTS
from minicluster_hub.scheduling.policies import POLICIES
from minicluster_hub.simulator.command.files import policy_file
from minicluster_hub.simulator.compare import Setting
from minicluster_hub.simulator.model import Model
from minicluster_hub.simulator.work import Shape

ABOUT = "replay jobs under several policies and placements, and print how they did"


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Read the arguments; on a wrong one, say which and exit with code 2."""
    parser = argparse.ArgumentParser(prog="minicluster simulate", description=f"{ABOUT.capitalize()}.")
    _jobs(parser)
    add = parser.add_argument
    add("--nodes", type=_positive, default=3, help="of the cluster (%(default)s)")
    add("--gpus", type=_positive, default=4, help="of each node (%(default)s)")
    _names(parser, "--policy", "policies", POLICIES, "fifo", own="or FILE.py, a policy of your own")
    _names(parser, "--placement", "placements", PLACEMENTS, "pack")
    add("--plot", type=Path, metavar="FILE", help="draw the figures into it (.svg, .png or .pdf)")
    _assumptions(parser)
    return parser.parse_args(arguments)


def setting(given: argparse.Namespace) -> Setting:
    """Return the cluster and the assumptions that were chosen. Raises PolicyFailed, OSError."""
    numbers = {field.name: getattr(given, field.name) for field in fields(Model)}
    own = {name: policy_file(Path(name)) for name in given.policies if name not in POLICIES}
    return Setting(Shape(given.nodes, given.gpus), Model(**numbers), own)


def _jobs(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--trace",
        dest="traces",
        action="append",
        type=Path,
        default=[],
        metavar="FILE",
        help="jobs of Philly, Pollux, Muri, Gavel, Tiresias or a lab; repeated, the figures are means over "
        "all traces; without, jobs are drawn at random",
    )
    add("--jobs", type=_positive, default=300, help="how many are drawn (%(default)s)")
    add("--load", type=float, default=1.0, help="of the jobs drawn; 0: all come at once (%(default)s)")
    add("--seeds", type=_numbers, default=[0, 1, 2], help="of the jobs drawn (0,1,2)")


def _names(
    parser: argparse.ArgumentParser,
    option: str,
    dest: str,
    known: Collection[str],
    default: str,
    own: str = "",
) -> None:
    told = "; ".join(part for part in (", ".join(known), own) if part)
    parser.add_argument(option, dest=dest, type=_among(known, own), default=[default], help=told)


def _assumptions(parser: argparse.ArgumentParser) -> None:
    """Let every number of the model be chosen."""
    model = Model()
    add = parser.add_argument_group("assumptions").add_argument
    add("--restart-s", type=float, default=model.restart_s, help="cost of a change of places (%(default)g)")
    add("--min-run-s", type=float, default=model.min_run_s, help="least between two of them (%(default)g)")
    add("--exponent", type=float, default=model.exponent, help="k slots are k^this as fast (%(default)g)")
    add(
        "--cross-node-efficiency",
        type=float,
        default=model.cross_node_efficiency,
        help="speed on several nodes, as a share of that on one (%(default)g)",
    )
    add(
        "--least-share",
        type=float,
        default=model.least_share,
        help="fewest slots of an elastic job, as a share of those asked for (%(default)g)",
    )
    add(
        "--most-times",
        type=float,
        default=model.most_times,
        help="most slots of an elastic job, in times those asked for (%(default)g)",
    )
    add("--fixed-batch", dest="adapts", action="store_false", help="jobs never adapt their batch size")
    add("--half-life-s", type=float, default=model.half_life_s, help="of an owner's use (%(default)g)")


def _among(known: Collection[str], own: str) -> Callable[[str], list[str]]:
    """Return a reader of names with commas between them, or `all`; own: what else may be a file."""

    def read(text: str) -> list[str]:
        names = list(known) if text == "all" else text.split(",")
        for name in names:
            if name not in known and not (own and name.endswith(".py")):
                there = ", ".join(part for part in ("all", *known, own) if part)
                raise argparse.ArgumentTypeError(f"there is no {name!r}; there are: {there}")
        return names

    return read


def _positive(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text}: a number from 1 on")
    return int(text)


def _numbers(text: str) -> list[int]:
    if not all(part.isdigit() for part in text.split(",")):
        raise argparse.ArgumentTypeError(f"{text}: numbers with commas between them, like 0,1,2")
    return [int(part) for part in text.split(",")]
