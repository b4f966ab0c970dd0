"""What may stand behind `%%distribute`: a field for each option, with its value, help and what Tab offers."""

from __future__ import annotations

import operator
from argparse import Namespace
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache
from typing import Any

from minicluster.parsing import values
from minicluster.parsing.parser import Argument, LineParser, OptionWrong, split_line

__all__ = ["CellOptions", "OptionWrong", "cell_arguments", "cell_options", "cell_parser", "parse_cell_line"]

ABOUT = (
    "Run this cell on all nodes of the cluster, or on those asked for. What the cell reads travels there, "
    "what it assigns comes back. %distribute? shows the commands about jobs, nodes, data and images."
)


def option(
    name: str, read: Callable[[str], Any] | None, like: str, help: str, default: Any = None, **more: Any
) -> Any:
    """Declare an option as a field of CellOptions; more: see Argument. A flag has neither read nor like."""
    default = False if read is None else default
    argument = Argument(name=name, help=help, read=read, like=like, default=default, **more)
    made: Any = field(metadata={"argument": argument}, default=default)
    if isinstance(default, dict):
        made = field(metadata={"argument": argument}, default_factory=dict)
    return made


@dataclass(frozen=True)
class CellOptions:
    """What a line says. A field with the name of one of wire.JobSpec's goes there.

    nodes, slots: least and most. push, pull: None means what the cell reads, makes.
    """

    nodes: tuple[int, int] | None = option(
        "--nodes", values.count_range, "3 (or 1:3)", "so many nodes; or as many as there are, from 1 to 3"
    )
    slots: tuple[int, int] | None = option(
        "--gpus", values.count_range, "4 (or 2:4)", "so many GPUs wherever they are, a rank for each"
    )
    slots_per_node: int = option(
        "--gpus-per-node", values.count_to(64), "1", "GPUs on each node; CPU slots where there are none", 1
    )
    ranks_per_node: int | None = option(
        "--ranks-per-node", values.count_to(256), "2", "ranks on each node, if not one for each GPU"
    )
    name: str | None = option(
        "--name", values.job_name, "my-run", "what the job is called: else NOTEBOOK [CELL]"
    )
    push: tuple[str, ...] | None = option(
        "--push",
        values.names,
        "a,b (or none)",
        "what travels, in place of all that the cell reads",
        offers="names",
    )
    pull: tuple[str, ...] | None = option(
        "--pull",
        values.names,
        "a,b (or none)",
        "what comes back, in place of all that the cell assigns or changes",
        offers="names",
    )
    gather: tuple[str, ...] = option(
        "--gather", values.names, "losses,acc", "what comes back as a list with each rank's value", (),
        add=operator.add, offers="names",
    )  # fmt: skip
    files: tuple[str, ...] = option(
        "--with", values.paths, "data.json,conf/", "files and folders beside the notebook that go along", (),
        add=operator.add,
    )  # fmt: skip
    data: tuple[str, ...] = option(
        "--data", values.data_sets, "cinic10,ada/mnist", "data sets that the ranks read", (),
        add=values.more_data_sets, offers="data",
    )  # fmt: skip
    detach: bool = option("--detach", None, "", "return at once; %distribute attach ID shows the job")
    env: Mapping[str, str] = option(
        "--env", values.variable, "NAME=VALUE", "an environment variable of the ranks, as often as you like",
        {}, add=operator.or_,
    )  # fmt: skip
    timeout_s: float | None = option("--timeout", values.seconds, "30m", "end the job after so long")
    priority: int = option(
        "--priority",
        values.priority,
        "40",
        "1 to 99: a higher one goes first where the policy looks at it",
        50,
    )
    quiet_after_s: float | None = option(
        "--quiet",
        values.seconds_or_never,
        "5m (or 0: never)",
        "tell of a rank without progress after so long",
    )
    image: str | None = option(
        "--image",
        values.image,
        "NAME",
        "the image that ranks run in, if not the notebook's own",
        offers="images",
    )
    shm_bytes: int | None = option(
        "--shm", values.size_bytes, "2g", "shared memory, for loaders with many processes"
    )
    comm: str = option(
        "--comm", values.communication, "auto", "how gradients are averaged: auto or ddp", "auto",
        offers=("auto", "ddp"),
    )  # fmt: skip
    fault_tolerant: bool = option("--fault-tolerant", None, "", "ranks that are left go on, new ones join")
    sync_env: bool = option("--sync-env", None, "", "install for the ranks what you installed here with pip")
    plain: bool = option("--plain", None, "", "show text in place of the panel")


@cache
def cell_arguments() -> tuple[Argument, ...]:
    """Return the options of a cell, for whatever runs something as a cell is run."""
    return tuple(replace(one.metadata["argument"], dest=one.name) for one in fields(CellOptions))


@cache
def cell_parser() -> LineParser:
    valid = "  ".join(f"{one.name} {one.like}".strip() for one in cell_arguments())
    return LineParser("%%distribute", ABOUT, cell_arguments(), f"%%distribute? explains them: {valid}")


def parse_cell_line(line: str) -> CellOptions:
    """Parse the line of a cell. Raises OptionWrong and HelpAsked."""
    return cell_options(cell_parser().parse(split_line(line)))


def cell_options(said: Namespace) -> CellOptions:
    """Take a cell's options out of what a parser found. Raises OptionWrong."""
    options = CellOptions(**{one.name: getattr(said, one.name) for one in fields(CellOptions)})
    whole_nodes = options.nodes or options.ranks_per_node or options.slots_per_node != 1
    if options.slots and (whole_nodes or options.fault_tolerant):
        raise OptionWrong(
            "--gpus takes GPUs wherever they are, one rank for each.",
            "Leave --nodes, --gpus-per-node, --ranks-per-node and --fault-tolerant out, or --gpus.",
        )
    if options.gather and options.fault_tolerant:
        raise OptionWrong(
            "--gather makes a list with a value of each rank, and with --fault-tolerant ranks come and go.",
            "Leave one of them out.",
        )
    return options
