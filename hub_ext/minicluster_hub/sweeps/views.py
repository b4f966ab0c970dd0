"""Sweeps and trials as their owners see them."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence

from minicluster.wire.sweeps.sweeps import Sweep, SweepDetails, Trial
from minicluster.wire.sweeps.trials import Among
from minicluster_hub.store.jobs.sweeps import ParameterRecord, SweepRecord, TrialRecord, shown
from minicluster_hub.sweeps.ranking import best_of

Parameters = Mapping[int, Sequence[ParameterRecord]]
Values = Mapping[int, Mapping[float, float]]


def trial_message(
    trial: TrialRecord, drawn: Sequence[ParameterRecord], values: Mapping[float, float]
) -> Trial:
    """Return a trial; as long as it is not over, with the last value that it logged."""
    step, value = trial.step, trial.value
    if trial.state is None and values:
        step, value = list(values.items())[-1]
    return Trial(
        number=trial.number,
        job=trial.job_id,
        state=trial.shown_state,
        value=value,
        step=step,
        params={one.name: shown(one) for one in drawn},
        created_at=trial.created_at,
        started_at=trial.started_at,
        ended_at=trial.job_ended_at,
        error=trial.error,
    )


def sweep_message(
    sweep: SweepRecord, trials: Sequence[TrialRecord], drawn: Parameters, note: str, now: float
) -> Sweep:
    best = best_of(sweep.settings, trials)
    spans = ((trial.started_at, trial.job_ended_at or now) for trial in trials)
    return Sweep(
        id=sweep.id,
        owner=sweep.owner,
        name=sweep.name,
        state=sweep.state,
        settings=sweep.settings,
        created_at=sweep.created_at,
        ended_at=sweep.ended_at,
        counts=dict(Counter(trial.shown_state for trial in trials)),
        best=None if best is None else trial_message(best, drawn.get(best.number, ()), {}),
        note=note,
        error=sweep.error,
        spent_s=sum(max(0.0, ended - started) for started, ended in spans if started is not None),
    )


def sweep_details(
    sweep: SweepRecord,
    trials: Sequence[TrialRecord],
    drawn: Parameters,
    values: Values,
    note: str,
    now: float,
) -> SweepDetails:
    spaces: dict[str, Among] = {}
    for records in drawn.values():
        for one in records:
            spaces.setdefault(one.name, one.among)
    details = SweepDetails(
        sweep=sweep_message(sweep, trials, drawn, note, now),
        trials=tuple(
            trial_message(one, drawn.get(one.number, ()), values.get(one.number, {})) for one in trials
        ),
        spaces=spaces,
    )
    # Without the time that running trials have spent: it differs with each look.
    stable = details.model_copy(update={"sweep": details.sweep.model_copy(update={"spent_s": 0.0})})
    version = hashlib.sha256(stable.model_dump_json().encode()).hexdigest()[:16]
    return details.model_copy(update={"version": version})
