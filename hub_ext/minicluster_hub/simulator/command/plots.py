"""The results as a picture; matplotlib is needed only here."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from minicluster_hub.simulator.compare import Row

_HOUR_S = 3600.0
_BARS = (
    ("average_s", "average completion, h", _HOUR_S),
    ("p99_s", "99 % completed within, h", _HOUR_S),
    ("makespan_s", "makespan, h", _HOUR_S),
    ("jain_sizes", "Jain's index over sizes", 1.0),
    ("restarts", "restarts per job", 1.0),
    ("crossed", "time across nodes, %", 0.01),
    ("network_bytes", "between nodes, TB", 1e12),
)
"""Figure, title, and what one unit of the axis is."""


class PlotImpossible(Exception):
    """matplotlib is missing."""


def plot(rows: Sequence[Row], path: Path) -> None:
    """Draw how completion times are distributed, their average, and the makespan. Raises PlotImpossible."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise PlotImpossible("a plot needs matplotlib: pip install 'minicluster[examples]'") from error
    figure = Figure(figsize=(16, 3 + 0.5 * len(rows)), layout="constrained")
    curves, *bars = figure.subplots(2, (1 + len(_BARS)) // 2).flat
    _draw_curves(curves, rows)
    for axes, (name, title, unit) in zip(bars, _BARS, strict=True):
        _draw_bars(axes, rows, name, title, unit)
    figure.savefig(path)


def _label(row: Row) -> str:
    return f"{row.policy}, {row.placement}"


def _draw_curves(axes: Any, rows: Sequence[Row]) -> None:
    for row in rows:
        hours = sorted(outcome.completion_s / _HOUR_S for outcome in row.outcomes)
        axes.plot(hours, [(index + 1) / len(hours) for index in range(len(hours))], label=_label(row))
    axes.set(xscale="log", xlabel="completion time, h", ylabel="share of the jobs", ylim=(0, 1))
    axes.legend(fontsize="x-small")


def _draw_bars(axes: Any, rows: Sequence[Row], name: str, title: str, unit: float) -> None:
    figures = [row.figures()[name] for row in rows]
    axes.barh(
        range(len(rows)),
        [figure.mean / unit for figure in figures],
        xerr=[figure.spread / unit for figure in figures] if len(rows[0].runs) > 1 else None,
    )
    axes.set_yticks(range(len(rows)), [_label(row) for row in rows], fontsize="small")
    axes.invert_yaxis()
    axes.set_xlabel(title)
