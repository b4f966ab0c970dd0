"""Which trial is the best. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

from minicluster.wire.sweeps.sweeps import SweepSettings, TrialState
from minicluster_hub.store.jobs.sweeps import TrialRecord


def is_better(settings: SweepSettings, value: float, other: float) -> bool:
    return value > other if settings.maximize else value < other


def best_of(settings: SweepSettings, trials: Sequence[TrialRecord]) -> TrialRecord | None:
    """Return the complete trial with the best value; the earlier one of two equal ones."""
    best: TrialRecord | None = None
    for trial in trials:
        if trial.state is not TrialState.COMPLETE or trial.value is None or not math.isfinite(trial.value):
            continue
        if best is None or best.value is None or is_better(settings, trial.value, best.value):
            best = trial
    return best
