"""A sweep's trial as a cell of its own: the same code with the parameters that the trial had."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import TYPE_CHECKING

from minicluster.parsing.parser import OptionWrong, split_line
from minicluster.wire import RunDetails
from minicluster.wire.sweeps.sweeps import Trial, TrialState

if TYPE_CHECKING:
    from minicluster.client.client import JobServiceClient


def trial_of(service: JobServiceClient, details: RunDetails) -> Trial | None:
    """Return the trial that a run was, None if it was none. Raises ServiceError."""
    if details.run.sweep is None:
        return None
    from minicluster.sweeps.calls import SweepCalls

    trials = SweepCalls(service).sweep(details.run.sweep).trials
    return next((trial for trial in trials if trial.job == details.run.id), None)


def as_cell(details: RunDetails, trial: Trial) -> RunDetails:
    """Return a trial's details as those of a %%distribute cell: without the options of the search."""
    origin = details.origin
    fixed = f"import minicluster as mc; mc.fix_parameters({trial.params!r})  # trial {trial.number}\n"
    changed = {"source": fixed + origin.source, "line": shlex.join(_cell_options(origin.line))}
    return details.model_copy(update={"origin": origin.model_copy(update=changed)})


def trial_differences(trial: Trial) -> Iterator[str]:
    """Yield what is not as it was in the sweep."""
    if trial.state is TrialState.PRUNED:
        at = "" if trial.step is None else f" at step {trial.step:g}"
        yield f"The sweep pruned it{at}; the cell goes on to its end."


def _cell_options(line: str) -> list[str]:
    """Return the words of a sweep's line that are for its trials."""
    from minicluster.sweeps.options import SEARCH_OPTIONS

    try:
        words = split_line(line)
    except OptionWrong:
        return []
    found: list[str] = []
    following = iter(words)
    for word in following:
        name, given, _ = word.partition("=")
        if name not in SEARCH_OPTIONS:
            found.append(word)
        elif SEARCH_OPTIONS[name] and not given:
            next(following, None)
    if not any(word.partition("=")[0] in ("--nodes", "--slots") for word in found):
        found += ["--nodes", "1"]
    return found
