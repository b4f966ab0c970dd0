"""A sweep as the notebook has it: its trials as a table, the best one with its parameters and objects."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

from minicluster.errors import MiniclusterError
from minicluster.sweeps.calls import SweepCalls
from minicluster.sweeps.view import sweep_html, sweep_text
from minicluster.wire.sweeps.sweeps import SweepDetails, SweepState, Trial, TrialState

if TYPE_CHECKING:
    from pandas import DataFrame  # pyright: ignore[reportMissingImports]

FetchNames = Callable[[int], Mapping[str, Any]]
"""Returns the objects of a job's result, by name."""


class NoBestTrial(MiniclusterError):
    """No trial has come to its end with a value."""


class PandasMissing(MiniclusterError):
    """sweep.trials is a pandas table, and pandas is not installed."""


class BestTrial:
    """The best trial of a sweep so far: `params`, `value`, and in `names` the objects that its cell made."""

    def __init__(self, trial: Trial, fetch: FetchNames) -> None:
        self.number = trial.number
        self.job = trial.job
        self.value = trial.value
        self.step = trial.step
        self.params = dict(trial.params)
        self._fetch = fetch

    @cached_property
    def names(self) -> Mapping[str, Any]:
        """The objects of its result, by name; downloaded when first used."""
        return self._fetch(self.job)

    def __getitem__(self, name: str) -> Any:
        """Return one of its objects: `sweep.best["model"]`."""
        return self.names[name]

    def __repr__(self) -> str:
        params = ", ".join(f"{name}={value!r}" for name, value in self.params.items())
        return f"Trial {self.number} (job {self.job}): {self.value:g} with {params or 'no parameters'}"


class Sweep:
    """A sweep, as `%%sweep` returns it."""

    def __init__(self, calls: SweepCalls, details: SweepDetails, fetch: FetchNames) -> None:
        self._calls = calls
        self._details = details
        self._fetch = fetch

    @property
    def id(self) -> int:
        return self._details.sweep.id

    @property
    def details(self) -> SweepDetails:
        """All that the service knows of it; asked for again as long as it is not over."""
        if not self._details.sweep.state.over:
            self._details = self._calls.sweep(self.id)
        return self._details

    @property
    def state(self) -> SweepState:
        return self.details.sweep.state

    @property
    def best(self) -> BestTrial:
        """The best complete trial so far. Raises NoBestTrial."""
        details = self.details
        best = details.sweep.best
        if best is None:
            failed = next((one for one in details.trials if one.state is TrialState.FAILED), None)
            hint = f"Trial {failed.number} (job {failed.job}) failed: {failed.error}" if failed else ""
            raise NoBestTrial(
                f"Sweep {self.id} has no complete trial with {details.sweep.settings.metric}.", hint
            )
        return BestTrial(best, self._fetch)

    @property
    def trials(self) -> DataFrame:
        """All trials as a pandas table: a row each, with its parameters as columns. Raises PandasMissing."""
        try:
            import pandas  # pyright: ignore[reportMissingImports]
        except ImportError:
            raise PandasMissing(
                "sweep.trials is a table of pandas, which is not installed in this notebook.",
                "pip install pandas; or take sweep.rows(), which are the same rows as dicts.",
            ) from None
        rows = self.rows()
        return pandas.DataFrame(rows).set_index("trial") if rows else pandas.DataFrame()

    def rows(self) -> list[dict[str, Any]]:
        """Return all trials as dicts, in order: trial, state, value, step, the parameters, seconds, job."""
        return [_row(trial) for trial in self.details.trials]

    def importance(self) -> dict[str, float]:
        """Return each parameter's share in what makes trials good; empty if there are too few trials."""
        return dict(self._calls.importance(self.id).shares)

    def stop(self) -> None:
        """Stop it and its trials."""
        self._calls.stop(self.id)

    def __repr__(self) -> str:
        return sweep_text(self.details)

    def _repr_html_(self) -> str:
        return sweep_html(self.details, self._calls.page(self.id))


def _row(trial: Trial) -> dict[str, Any]:
    ended = trial.ended_at
    seconds = None if trial.started_at is None or ended is None else ended - trial.started_at
    own = {"trial": trial.number, "state": trial.state.value, "value": trial.value, "step": trial.step}
    # A parameter with the name of a column does not hide it.
    params = {name if name not in own else f"params.{name}": value for name, value in trial.params.items()}
    return {**own, **params, "seconds": seconds, "job": trial.job}
