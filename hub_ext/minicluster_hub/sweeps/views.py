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
Newest = Mapping[int, tuple[float, float]]
"""The step and the value that a trial logged last, by its number."""


def trial_message(
    trial: TrialRecord, drawn: Sequence[ParameterRecord], newest: tuple[float, float] | None = None
) -> Trial:
    """Return a trial. newest: its last step and value, as long as it is not over."""
    step, value = (trial.step, trial.value) if newest is None else newest
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
        best=None if best is None else trial_message(best, drawn.get(best.number, ())),
        note=note,
        error=sweep.error,
        spent_s=sum(max(0.0, ended - started) for started, ended in spans if started is not None),
    )


def sweep_details(
    sweep: SweepRecord,
    trials: Sequence[TrialRecord],
    drawn: Parameters,
    newest: Newest,
    note: str,
    now: float,
) -> SweepDetails:
    spaces: dict[str, Among] = {}
    for records in drawn.values():
        for one in records:
            spaces.setdefault(one.name, one.among)
    details = SweepDetails(
        sweep=sweep_message(sweep, trials, drawn, note, now),
        trials=tuple(trial_message(one, drawn.get(one.number, ()), newest.get(one.number)) for one in trials),
        spaces=spaces,
    )
    # Without the time that running trials have spent: it differs with each look.
    stable = details.model_copy(update={"sweep": details.sweep.model_copy(update={"spent_s": 0.0})})
    version = hashlib.sha256(stable.model_dump_json().encode()).hexdigest()[:16]
    return details.model_copy(update={"version": version})
