"""The search of one sweep with Optuna: draws parameters, compares trials, says which of them end early.

Optuna's study is in memory only. All of it can be made again from the store, so that nothing of Optuna's own
is stored. Only the thread of `Searches` calls a search, since Optuna computes for milliseconds.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from minicluster.wire.sweeps.sweeps import PruneMethod, SearchMethod, SweepSettings, TrialState
from minicluster.wire.sweeps.trials import Among, Choices
from minicluster_hub.store.jobs.sweeps import ParameterRecord, TrialRecord
from minicluster_hub.sweeps.grid import Path, Visit, capacity, next_value

_MOST_GRID_POINTS = 1000
_STARTUP_TRIALS = 5
"""So many trials run to their end before others are compared with them."""
_LEAST_COMPARED = 3
_ROUNDING = 1e-9


class SuggestRefused(Exception):
    """A parameter cannot be drawn. The message and the hint are for the cell's author."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


@dataclass(frozen=True)
class History:
    """What the store knows of a sweep: its trials, what was drawn for them, their values at each step."""

    trials: Sequence[TrialRecord] = ()
    parameters: Mapping[int, Sequence[ParameterRecord]] = field(default_factory=dict)
    values: Mapping[int, Mapping[float, float]] = field(default_factory=dict)


class Search:
    """One sweep's search. Trials are known by their numbers in the sweep."""

    def __init__(self, settings: SweepSettings, history: History) -> None:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._optuna = optuna
        self._settings = settings
        self._among: dict[str, Among] = {}
        self._visits: dict[int, Visit] = {}
        self._trials: dict[int, Any] = {}
        self._asked: dict[int, dict[str, Among]] = {}
        self._usual: dict[str, Among] | None = None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Some of what we use is called experimental.
            self._study = optuna.create_study(
                direction="maximize" if settings.maximize else "minimize",
                sampler=self._sampler(len(history.trials)),
                pruner=self._pruner(),
            )
            for trial in history.trials:
                self._recall(trial, history)

    # What the ranks ask.

    def draw_ahead(self, number: int) -> list[ParameterRecord]:
        """Draw what all trials that came to their end asked for. None of it counts before it is asked for."""
        if self._settings.search is SearchMethod.GRID:
            return []  # Which point comes next follows from what was asked before.
        trial = self._trial(number)
        usual = [(name, among) for name, among in (self._usual or {}).items() if name not in trial.params]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return [ParameterRecord(name, among, self._sample(trial, name, among)) for name, among in usual]

    def _sample(self, trial: Any, name: str, among: Among) -> float:
        """Return what Optuna's trial would draw, without setting it."""
        distribution = self._distribution(among)
        if distribution.single():
            return 0.0 if isinstance(among, Choices) else float(among.low)
        if trial._is_relative_param(name, distribution):
            return float(trial.relative_params[name])
        frozen = self._study._storage.get_trial(trial._trial_id)
        return float(self._study.sampler.sample_independent(self._study, frozen, name, distribution))

    def suggest(self, number: int, name: str, among: Among, given: float | None = None) -> float:
        """Draw a parameter of a trial: a number of the range, or the index of the choice.

        given: what was drawn ahead for the same question. Raises SuggestRefused.
        """
        known = self._among.setdefault(name, among)
        if isinstance(among, Choices) and known != among:
            raise SuggestRefused(
                f"mc.suggest({name!r}): the choices differ from those before.",
                "Choices must be the same in all trials, and on all ranks: give a changed list a new name.",
            )
        distribution = self._distribution(among)
        trial = self._trial(number)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                on_grid = self._settings.search is SearchMethod.GRID
                if (on_grid or given is not None) and name not in trial.params:
                    value = self._grid_value(number, name, among) if given is None else given
                    internal, storage = distribution.to_internal_repr(value), self._study._storage
                    storage.set_trial_param(trial._trial_id, name, internal, distribution)
                    trial._cached_frozen_trial = storage.get_trial(trial._trial_id)
                else:
                    value = float(trial._suggest(name, distribution))
        except (ValueError, RuntimeError, KeyError) as error:
            raise SuggestRefused(f"mc.suggest({name!r}): {error}") from error
        self._visit(number, name, value)
        self._asked.setdefault(number, {}).setdefault(name, among)
        return value

    # What the ranks logged.

    def report(self, number: int, values: Sequence[tuple[float, float]]) -> bool:
        """Take a trial's values at some steps; return whether it should end early."""
        trial, storage = self._trial(number), self._study._storage
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            # Each step by itself: others may have no value at the last of those that came together.
            for step, value in values:
                if math.isfinite(value):
                    storage.set_trial_intermediate_value(trial._trial_id, int(step), value)
                    trial._cached_frozen_trial = storage.get_trial(trial._trial_id)
                    if trial.should_prune():
                        return True
        return False

    def tell(self, number: int, state: TrialState, value: float | None) -> None:
        """Take how a trial ended."""
        states = self._optuna.trial.TrialState
        good = state is TrialState.COMPLETE and value is not None
        told = states.COMPLETE if good else states.PRUNED if state is TrialState.PRUNED else states.FAIL
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self._study.tell(self._trial(number), value if good else None, state=told, skip_if_finished=True)
        self._end_visit(number, state)
        asked = self._asked.pop(number, {})
        if state is TrialState.COMPLETE:
            usual = asked if self._usual is None else self._usual
            self._usual = {name: asked[name] for name in usual if name in asked}

    def has_more(self) -> bool:
        """Return whether one more trial finds something to try: always, but on a grid."""
        if self._settings.search is not SearchMethod.GRID:
            return True
        return capacity(list(self._visits.values()), self._points()) > 0

    def start(self, number: int) -> None:
        """Take note of a trial that has begun: on a grid, it will take one of the points that are left."""
        self._visits.setdefault(number, Visit(()))

    def importance(self) -> dict[str, float]:
        """Return each parameter's share, by PED-ANOVA; empty if there are too few trials to tell."""
        importance = self._optuna.importance
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                evaluator = importance.PedAnovaImportanceEvaluator()
                found = importance.get_param_importances(self._study, evaluator=evaluator)
        except (ValueError, RuntimeError, ZeroDivisionError):
            return {}
        return {name: share for name, share in found.items() if math.isfinite(share)}

    # Optuna's parts.

    def _sampler(self, trials: int) -> Any:
        import numpy

        samplers = self._optuna.samplers
        # Another seed after a restart: the same one would draw the first trials' parameters again.
        given = self._settings.seed
        seed = None if given is None else int(numpy.random.SeedSequence([given, trials]).generate_state(1)[0])
        if self._settings.search is SearchMethod.TPE:
            return samplers.TPESampler(seed=seed, constant_liar=True)
        if self._settings.search is SearchMethod.CMAES:
            return samplers.CmaEsSampler(seed=seed, warn_independent_sampling=False)
        return samplers.RandomSampler(seed=seed)

    def _pruner(self) -> Any:
        pruners = self._optuna.pruners
        if self._settings.prune is PruneMethod.MEDIAN:
            return pruners.MedianPruner(n_startup_trials=_STARTUP_TRIALS, n_min_trials=_LEAST_COMPARED)
        if self._settings.prune is PruneMethod.HYPERBAND:
            return pruners.HyperbandPruner()
        return pruners.NopPruner()

    def _distribution(self, among: Among) -> Any:
        distributions = self._optuna.distributions
        if isinstance(among, Choices):
            return distributions.CategoricalDistribution(range(len(among.choices)))
        if among.whole:
            step = int(among.step or 1)
            return distributions.IntDistribution(int(among.low), int(among.high), log=among.log, step=step)
        return distributions.FloatDistribution(among.low, among.high, log=among.log, step=among.step)

    def _trial(self, number: int) -> Any:
        """Return Optuna's trial; the first call for a number makes it, with all that is known by now."""
        if number not in self._trials:
            self.start(number)
            self._trials[number] = self._study.ask()
        return self._trials[number]

    def _recall(self, trial: TrialRecord, history: History) -> None:
        """Make Optuna's trial from what the store knows."""
        drawn = history.parameters.get(trial.number, ())
        self.start(trial.number)
        for one in drawn:
            self._among.setdefault(one.name, one.among)
            self._visit(trial.number, one.name, one.value)
            self._asked.setdefault(trial.number, {})[one.name] = one.among
        if not drawn and trial.state is None:
            return
        states = self._optuna.trial.TrialState
        steps = history.values.get(trial.number, {})
        kept = {int(step): value for step, value in steps.items() if math.isfinite(value)}
        frozen = self._optuna.trial.create_trial(
            state=states.FAIL,
            params={one.name: _native(one) for one in drawn},
            distributions={one.name: self._distribution(one.among) for one in drawn},
            intermediate_values=kept,
        )
        frozen.state, frozen.datetime_complete = states.RUNNING, None
        storage = self._study._storage
        trial_id = storage.create_new_trial(self._study._study_id, template_trial=frozen)
        self._trials[trial.number] = self._optuna.trial.Trial(self._study, trial_id)
        if trial.state is not None:
            self.tell(trial.number, trial.state, trial.value)

    # The grid.

    def _points(self) -> dict[str, list[float]]:
        return {name: grid_points(name, among) for name, among in self._among.items()}

    def _grid_value(self, number: int, name: str, among: Among) -> float:
        grid_points(name, among)
        own: Path = self._visits[number].path
        others = [visit for other, visit in self._visits.items() if other != number]
        value = next_value(others, self._points(), own, name)
        if value is None:
            # Another trial was quicker. It is tried twice, and nothing is left out.
            return self._points()[name][0]
        return value

    def _visit(self, number: int, name: str, value: float) -> None:
        visit = self._visits[number]
        if name not in dict(visit.path):
            self._visits[number] = Visit((*visit.path, (name, value)))

    def _end_visit(self, number: int, state: TrialState) -> None:
        failed = state in (TrialState.FAILED, TrialState.STOPPED)
        self._visits[number] = Visit(self._visits[number].path, over=True, failed=failed)


def _native(drawn: ParameterRecord) -> int | float:
    """Return a stored value with the type that Optuna expects."""
    whole = isinstance(drawn.among, Choices) or drawn.among.whole
    return int(drawn.value) if whole else drawn.value


def grid_points(name: str, among: Among) -> list[float]:
    """Return the values of a parameter's grid. Raises SuggestRefused if it has none, or too many."""
    if isinstance(among, Choices):
        return [float(index) for index in range(len(among.choices))]
    if among.low == among.high:
        return [among.low]
    step = among.step or (1.0 if among.whole and not among.log else None)
    if step is None:
        raise SuggestRefused(
            f"mc.suggest({name!r}) has no grid: its range has any number of values.",
            "Give step=, or a list of choices; or take another --search.",
        )
    count = math.floor((among.high - among.low) / step + _ROUNDING) + 1
    if count > _MOST_GRID_POINTS:
        raise SuggestRefused(
            f"mc.suggest({name!r}) has {count} values; a grid takes at most {_MOST_GRID_POINTS}.",
            "Give a larger step=, or take another --search.",
        )
    return [among.low + index * step for index in range(count)]
