"""The options of `%%distribute`: each is one field, with its flag, type, help, and what Tab offers.

The line's parser, `--help`, Tab, the guide's table and the request to the job service are made from these.
"""

from __future__ import annotations

from argparse import SUPPRESS
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from typing import TYPE_CHECKING, Any

from minicluster.parsing import values
from minicluster.parsing.parser import Argument, Join, LineParser, OptionWrong, split_line

if TYPE_CHECKING:
    from minicluster.client.client import JobServiceClient
    from minicluster.wire import CountRange, DataUse

__all__ = [
    "CellOptions",
    "OptionWrong",
    "cell_arguments",
    "cell_options",
    "cell_parser",
    "parse_cell_line",
    "refuse_what_torch_alone_does",
]

ABOUT = (
    "Run this cell on all nodes of the cluster, or on some of them. The names that it reads are sent there; "
    "those that it assigns or changes come back. %distribute? shows the commands for jobs, nodes and data."
)
_MOST_DATA_SETS = 32
_FORMER_NAMES = {"--quiet": "--stall-timeout"}
"""Options of earlier releases, and what they are called now."""


def option(
    name: str,
    help: str,
    like: str = "",
    default: Any = None,
    completer: Callable[[JobServiceClient], Iterable[str]] | None = None,
    **more: Any,
) -> Any:
    """Declare an option as a field. like: an example of its value; an option without one is a flag."""
    default = default if like else False
    more |= {"default": default, **({"metavar": like} if like else {"action": "store_true"})}
    one = Argument(name, help, completer, more)
    return field(default_factory=lambda: default, metadata={"argument": one})


def image_names(service: JobServiceClient) -> Iterable[str]:
    return (one.name for one in service.images().images)


def data_set_names(service: JobServiceClient) -> Iterable[str]:
    from minicluster.datasets import calls

    own = ("", service.user) if service.user else ()
    sets = calls.listed(service)
    return (one.name if not own or one.owner in own else f"{one.owner}/{one.name}" for one in sets)


def comm_names(_service: JobServiceClient) -> Iterable[str]:
    from minicluster.wire.comm import METHODS

    return METHODS


def framework_names(_service: JobServiceClient) -> Iterable[str]:
    from minicluster.wire.training.framework import Framework

    return tuple(Framework)


@dataclass(frozen=True)
class CellOptions:
    """The options of a line. Fields that JobSpec also has are copied into it; the kernel uses the others.

    push: None means all that the cell reads. pull: None means all that the cell assigns or changes.
    """

    # fmt: off
    nodes: CountRange | None = option(  # noqa: RUF009
        "--nodes", "number of nodes, or a range MIN:MAX; all nodes by default", "3 (or 1:3)",
        type=values.count_range,
    )
    slots: CountRange | None = option(  # noqa: RUF009
        "--gpus", "number of GPUs on any nodes, or a range; one rank for each", "4 (or 2:4)",
        type=values.count_range,
    )
    slots_per_node: int = option(
        "--gpus-per-node", "number of GPUs on each node; without GPUs, of CPU slots", "1", 1,
        type=values.number(1, 64),
    )
    gpu_share: float | None = option(
        "--gpu-share", "half a GPU on each node, for light cells: another cell or notebook has the rest",
        "0.5", type=values.gpu_share,
    )
    ranks_per_node: int | None = option(
        "--ranks-per-node", "number of ranks on each node; one per GPU by default", "2",
        type=values.number(1, 256),
    )
    name: str | None = option(
        "--name", "the job's name; by default the notebook's and the cell's", "my-run", type=values.job_name,
    )
    tags: tuple[str, ...] = option(
        "--tag", "tags by which you find the run again", "baseline,resnet", (), type=values.tags, action=Join,
    )
    seed: int | None = option(
        "--seed", "seed Python, NumPy and torch with this number plus the rank", "1",
        type=values.number(0, (1 << 32) - 1),
    )
    push: tuple[str, ...] | None = option(
        "--push", "names to send; by default all that the cell reads", "a,b (or none)",
        type=values.variables,
    )
    pull: tuple[str, ...] | None = option(
        "--pull", "names to return; by default all that the cell assigns or changes", "a,b (or none)",
        type=values.variables,
    )
    gather: tuple[str, ...] = option(
        "--gather", "names to return as a list with each rank's value", "losses,acc", (),
        type=values.variables, action=Join,
    )
    files: tuple[str, ...] = option(
        "--with", "files and folders beside the notebook to send with the cell", "data.json,conf/", (),
        type=values.files, action=Join,
    )
    data: tuple[DataUse, ...] = option(
        "--data", "data sets that the ranks read: your own, or others' shared ones", "cinic10,ada/mnist", (),
        data_set_names, type=values.data_uses, action=Join,
    )
    detach: bool = option("--detach", "return at once; %distribute attach ID shows the job")
    env: Mapping[str, str] = option(
        "--env", "an environment variable of the ranks; may be repeated", "NAME=VALUE", {},
        type=values.environment, action=Join,
    )
    timeout_s: float | None = option(
        "--timeout", "let the job fail after this run time", "30m", type=values.seconds,
    )
    priority: int = option(
        "--priority", "1 to 99, 50 by default; higher runs first if the policy uses it", "40", 50,
        type=values.number(1, 99),
    )
    stall_timeout_s: float | None = option(
        "--stall-timeout", "explain why if a rank makes no progress for this long", "5m (0: never)",
        type=values.seconds_or_never,
    )
    image: str | None = option(
        "--image", "the image for the ranks; by default the notebook's own", "NAME",
        completer=image_names, type=values.image,
    )
    framework: str | None = option(
        "--framework",
        "what trains in the cell: torch, jax, tensorflow or none; by default found from its imports",
        "jax", completer=framework_names, type=values.framework,
    )
    shm_bytes: int | None = option(
        "--shm", "shared memory for loaders with many processes; at most half of the task's memory", "2g",
        type=values.size_bytes,
    )
    comm: str | None = option(
        "--comm", "how ranks exchange gradients: auto measures and chooses; or powersgd:rank=2, ...", "auto",
        completer=comm_names, type=values.comm,
    )
    balance: bool = option("--balance", "give faster GPUs more samples of each step, by measured speed")
    fault_tolerant: bool = option("--fault-tolerant", "if ranks are lost, the others continue; new ones join")
    sync_env: bool = option("--sync-env", "install on the ranks what you installed here with pip")
    rerun_of: int | None = option(
        "--rerun-of", "the run that this cell repeats; %distribute rerun writes it", "ID",
        type=values.number(1, 10**15),
    )
    dry_run: bool = option(
        "--dry-run", "queue nothing: run the first step on virtual ranks here, and predict memory and times"
    )
    link_gbit: float | None = option(
        "--link", "what --dry-run takes for the network between nodes, in Gbit/s; 1 by default", "2.5",
        type=values.rate,
    )
    plain: bool = option("--plain", "show text instead of the panel")
    # fmt: on


@cache
def cell_arguments() -> tuple[Argument, ...]:
    """Return the options of a cell; `%distribute run` takes them, too."""
    declared = [(one.name, one.metadata["argument"]) for one in fields(CellOptions)]
    arguments = {one.name: one._replace(more={"dest": dest, **one.more}) for dest, one in declared}
    return (
        *arguments.values(),
        *(_hidden(arguments[name], former) for former, name in _FORMER_NAMES.items()),
    )


def _hidden(argument: Argument, name: str) -> Argument:
    """Return an argument under a further name, which no help and no completion shows."""
    return argument._replace(name=name, help=SUPPRESS, more={**argument.more, "default": SUPPRESS})


@cache
def cell_parser() -> LineParser:
    parser = LineParser("%%distribute", ABOUT, cell_arguments())
    valid = "  ".join(f"{name} {action.metavar or ''}".strip() for name, action in parser.options.items())
    parser.hint = f"%%distribute? explains them: {valid}"
    return parser


def parse_cell_line(line: str) -> CellOptions:
    """Parse the line of a cell. Raises OptionWrong and HelpRequested."""
    return cell_options(**vars(cell_parser().parse_words(split_line(line))))


def cell_options(**values: Any) -> CellOptions:
    """Check the options of a cell together. Raises OptionWrong."""
    options = CellOptions(**values)
    more_on_each_node = options.ranks_per_node or options.slots_per_node != 1
    if options.slots and (options.nodes or more_on_each_node or options.fault_tolerant):
        raise OptionWrong(
            "--gpus takes GPUs on any nodes, one rank for each.",
            "Leave out --gpus, or else --nodes, --gpus-per-node, --ranks-per-node and --fault-tolerant.",
        )
    if options.gpu_share and (options.slots or more_on_each_node or options.shm_bytes):
        raise OptionWrong(
            "--gpu-share takes half of one GPU on each node, with one rank and the node's shared memory.",
            "Leave out --gpu-share, or else --gpus, --gpus-per-node, --ranks-per-node and --shm.",
        )
    if options.gather and options.fault_tolerant:
        raise OptionWrong(
            "--gather makes a list with each rank's value, but with --fault-tolerant ranks come and go.",
            "Leave one of them out.",
        )
    if options.fault_tolerant and options.comm:
        _refuse_comm_that_needs_all(options.comm)
    if options.link_gbit is not None and not options.dry_run:
        raise OptionWrong("--link is what --dry-run predicts with.", "Leave it out, or add --dry-run.")
    if len(options.data) > _MOST_DATA_SETS:
        raise OptionWrong(f"--data: at most {_MOST_DATA_SETS} data sets can be named.")
    if options.balance:
        _refuse_what_cannot_be_balanced(options)
    if options.framework not in (None, "torch"):
        refuse_what_torch_alone_does(options.framework, options)
    return options


def refuse_what_torch_alone_does(framework: str, options: CellOptions) -> None:
    """Raise OptionWrong for an option that acts on what torch does, in a cell of another framework."""
    of_torch = {
        "--fault-tolerant": options.fault_tolerant,
        "--comm": options.comm,
        "--balance": options.balance,
        "--dry-run": options.dry_run,
    }
    if given := [flag for flag, value in of_torch.items() if value]:
        raise OptionWrong(
            f"{given[0]} is about torch, but what trains in this cell is {framework}.",
            f"Leave {given[0]} out, or say --framework torch.",
        )


def _refuse_what_cannot_be_balanced(options: CellOptions) -> None:
    if options.fault_tolerant:
        raise OptionWrong(
            "--balance needs ranks that stay; fault-tolerant ones come and go.",
            "Leave one of them out.",
        )
    if options.comm and options.comm.startswith("auto"):
        raise OptionWrong(
            "--comm auto times steps, while --balance changes how long they take.",
            "Run once with --comm auto alone; what it prints goes with --balance.",
        )


def _refuse_comm_that_needs_all(comm: str) -> None:
    from minicluster.wire.comm import comm_method, not_fault_tolerant

    if why := not_fault_tolerant(comm_method(comm)):
        raise OptionWrong(
            f"{why}.", "With --fault-tolerant there are --comm ddp, bf16, fp16, localsgd and diloco."
        )
