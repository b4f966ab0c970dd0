"""A sweep below its cell: the best trial so far and a table of trials, as HTML and as text."""

from __future__ import annotations

import time
from collections.abc import Sequence
from html import escape
from typing import Any

from minicluster.display.tables import Table
from minicluster.display.view import duration
from minicluster.wire.sweeps.sweeps import Sweep, SweepDetails, SweepState, Trial, TrialState

ROWS = 12
"""Trials below a cell: those that run, then the best ones. The sweep's page has all."""
_ORDER = {TrialState.RUNNING: 0, TrialState.WAITING: 1, TrialState.COMPLETE: 2, TrialState.PRUNED: 3}


def sweep_title(sweep: Sweep) -> str:
    """Return one line: "Sweep 3 (fit): running, 12 of 40 trials, 4 pruned"."""
    over = sum(count for state, count in sweep.counts.items() if state.over)
    total = f" of {sweep.settings.trials}" if sweep.settings.trials else ""
    more = [
        f"{sweep.counts[state]} {state.value}"
        for state in (TrialState.RUNNING, TrialState.PRUNED, TrialState.FAILED, TrialState.STOPPED)
        if sweep.counts.get(state)
    ]
    name = "" if sweep.name == "cell" else f" ({sweep.name})"
    words = ", ".join([f"{over}{total} trials over", *more])
    return f"Sweep {sweep.id}{name}: {sweep.state.value}, {words}"


def best_line(sweep: Sweep) -> str:
    best, metric = sweep.best, sweep.settings.metric
    if best is None:
        return f"No trial has a final {metric} yet." if not sweep.state.over else f"No trial has a {metric}."
    params = ", ".join(f"{name} = {shown(value)}" for name, value in best.params.items())
    return f"Best: {metric} = {shown(best.value)} in trial {best.number}, with {params or 'no parameters'}"


def trial_table(details: SweepDetails, rows: int = ROWS) -> Table:
    """List the trials that run and the best of the others."""
    names = list(details.spaces)
    chosen = sorted(details.trials, key=lambda one: _rank(one, details.sweep))[:rows]
    heads = ("trial", "state", details.sweep.settings.metric, "step", *names, "time", "job", "")
    return Table(heads, tuple(_cells(one, names) for one in chosen), "No trial has begun yet.")


def sweep_text(details: SweepDetails) -> str:
    lines = [sweep_title(details.sweep), *_remarks(details.sweep), best_line(details.sweep)]
    return "\n".join([*lines, repr(trial_table(details)), *_more(details)])


def sweep_html(details: SweepDetails, page: str) -> str:
    sweep = details.sweep
    link = f'<a href="{escape(page)}" target="_blank" rel="noopener">{escape(sweep_title(sweep))}</a>'
    lines = [f"<b>{link}</b>", *map(escape, _remarks(sweep)), escape(best_line(sweep))]
    body = "<br>".join(lines)
    more = "".join(f"<p>{escape(line)}</p>" for line in _more(details))
    return f"<div>{body}{trial_table(details)._repr_html_()}{more}</div>"


def mime_bundle(details: SweepDetails, page: str) -> dict[str, Any]:
    return {"text/html": sweep_html(details, page), "text/plain": sweep_text(details)}


def sweep_table(sweeps: Sequence[Sweep]) -> Table:
    """List sweeps as `%distribute sweeps` shows them."""
    rows = tuple(
        (
            f"sweep-{sweep.id}",
            sweep.name,
            sweep.state.value,
            f"{sum(sweep.counts.values())}{f' of {sweep.settings.trials}' if sweep.settings.trials else ''}",
            sweep.settings.metric,
            "" if sweep.best is None else shown(sweep.best.value),
            "" if sweep.best is None else ", ".join(f"{k}={shown(v)}" for k, v in sweep.best.params.items()),
            duration((sweep.ended_at or time.time()) - sweep.created_at),
        )
        for sweep in sweeps
    )
    heads = ("sweep", "name", "state", "trials", "metric", "best", "with", "time")
    return Table(heads, rows, "You have no sweeps yet. Put %%sweep --metric NAME on a cell's first line.")


def shown(value: Any) -> str:
    """Return a value in a few characters."""
    if isinstance(value, float):
        return f"{value:.4g}"
    text = str(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


def _rank(trial: Trial, sweep: Sweep) -> tuple[float, float, int]:
    value = float("inf") if trial.value is None else trial.value
    return _ORDER.get(trial.state, 4), -value if sweep.settings.maximize else value, trial.number


def _cells(trial: Trial, names: Sequence[str]) -> tuple[str, ...]:
    ended, started = trial.ended_at or time.time(), trial.started_at
    return (
        str(trial.number),
        trial.state.value,
        "" if trial.value is None else shown(trial.value),
        "" if trial.step is None else f"{trial.step:g}",
        *(shown(trial.params[name]) if name in trial.params else "" for name in names),
        "" if started is None else duration(max(0.0, ended - started)),
        str(trial.job),
        trial.error[:120],
    )


def _remarks(sweep: Sweep) -> list[str]:
    failed = f"It failed: {sweep.error}" if sweep.state is SweepState.FAILED and sweep.error else ""
    waits = f"No further trial starts now: {sweep.note}" if sweep.note and not sweep.state.over else ""
    return [line for line in (failed, waits) if line]


def _more(details: SweepDetails) -> list[str]:
    left = len(details.trials) - ROWS
    return [f"… and {left} more trials: sweep.trials has all of them."] if left > 0 else []
