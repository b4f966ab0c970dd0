"""The options of `%%sweep`: those of a cell, and those of the search."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

from minicluster.options import CellOptions, OptionWrong, cell_arguments, cell_options
from minicluster.parsing import values
from minicluster.parsing.parser import Argument, LineParser, split_line
from minicluster.wire import CountRange
from minicluster.wire.sweeps.sweeps import MOST_AT_ONCE, MOST_TRIALS, PruneMethod, SearchMethod, SweepSettings

ABOUT = (
    "Search for the parameters with which this cell's training is best. The cell takes its parameters from "
    "mc.suggest and logs the metric with mc.log; it runs once for each trial, as many at once as find free "
    "nodes. All options of %%distribute are for each trial."
)
_PRIORITY = 20
"""Of trials: jobs of normal priority go first, and preempt them where the policy preempts."""
_NOT_HERE = {"--fault-tolerant", "--rerun-of", "--dry-run", "--link"}
_METRIC = values.matching("[^,\n]{1,200}", "the name of a metric")

_OWN = (
    Argument(
        "--metric", "the metric to optimize: a name that mc.log logs", None,
        {"metavar": "val_loss", "type": _METRIC, "required": True},
    ),
    Argument(
        "--trials", "number of trials, 20 by default; without it, a grid runs all its points", None,
        {"metavar": "40", "type": values.number(1, MOST_TRIALS)},
    ),
    Argument("--minimize", "low values are good (the default)", None, {"action": "store_true"}),
    Argument("--maximize", "high values are good", None, {"action": "store_true"}),
    Argument(
        "--search", "how to choose parameters: tpe (the default), random, cmaes, or grid: all combinations",
        None, {"metavar": "tpe", "choices": [one.value for one in SearchMethod], "default": SearchMethod.TPE},
    ),
    Argument(
        "--prune", "which trials end early: median (the default), hyperband, or none", None,
        {"metavar": "median", "choices": [one.value for one in PruneMethod], "default": PruneMethod.MEDIAN},
    ),
    Argument(
        "--at-once", "most trials at the same time; by default as many as find free nodes", None,
        {"metavar": "4", "type": values.number(1, MOST_AT_ONCE)},
    ),
)  # fmt: skip
_TRIALS = 20
SEARCH_OPTIONS = {one.name: "action" not in one.more for one in _OWN}
"""The options that are for the search, not for its trials, and whether each takes a value."""


@dataclass(frozen=True)
class SweepOptions:
    """cell: of each trial."""

    settings: SweepSettings
    cell: CellOptions


def sweep_arguments() -> Iterator[Argument]:
    """Return the options of a sweep: its own ones first."""
    yield from _OWN
    for one in cell_arguments():
        if one.name == "--priority":
            yield one._replace(help="1 to 99, 20 by default", more={**one.more, "default": _PRIORITY})
        elif one.name not in _NOT_HERE:
            yield one


@cache
def sweep_parser() -> LineParser:
    return LineParser("%%sweep", ABOUT, sweep_arguments(), hint="%%sweep? explains the options.")


def parse_sweep_line(line: str) -> SweepOptions:
    """Parse the line of a sweep. Raises OptionWrong and HelpRequested."""
    return sweep_options(**vars(sweep_parser().parse_words(split_line(line))))


def sweep_options(
    *,
    metric: str,
    trials: int | None,
    minimize: bool,
    maximize: bool,
    search: str,
    prune: str,
    at_once: int | None,
    **cell: Any,
) -> SweepOptions:
    """Check the options of a sweep together. Raises OptionWrong."""
    if minimize and maximize:
        raise OptionWrong("--minimize and --maximize exclude each other.", "Leave one of them out.")
    if trials is None and search != SearchMethod.GRID:
        trials = _TRIALS
    # The seed is that of the search, and of each trial's random numbers.
    settings = SweepSettings(
        metric=metric,
        maximize=maximize,
        trials=trials,
        search=SearchMethod(search),
        prune=PruneMethod(prune),
        at_once=at_once,
        seed=cell.get("seed"),
    )
    options = cell_options(**cell)
    if options.nodes is None and options.slots is None:
        # A cell takes all nodes by default; a trial one, since trials run beside each other.
        options = cell_options(**{**cell, "nodes": CountRange(min=1, max=1)})
    return SweepOptions(settings, options)
