"""The results of a comparison as lines of text and as a picture. Only the picture needs matplotlib."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from minicluster_hub.simulator.compare import Row
from minicluster_hub.simulator.metrics import UNITS

HOUR_S = 3600.0


@dataclass(frozen=True, slots=True)
class Column:
    """figure: a field of ReplayMetrics."""

    title: str
    figure: str
    show: Callable[[float], str]


def _hours(value: float) -> str:
    return f"{value / HOUR_S:.2f}"


COLUMNS = (
    Column("average h", "average_s", _hours),
    Column("median h", "median_s", _hours),
    Column("p99 h", "p99_s", _hours),
    Column("makespan h", "makespan_s", _hours),
    Column("longest wait h", "longest_wait_s", _hours),
    Column("Jain sizes", "jain_sizes", "{:.2f}".format),
    Column("Jain owners", "jain_owners", "{:.2f}".format),
    Column("restarts", "restarts", "{:.2f}".format),
    Column("cross-node %", "crossed", lambda value: f"{100 * value:.1f}"),
    Column("needless %", "needless", lambda value: f"{100 * value:.1f}"),
    Column("network TB", "network_bytes", lambda value: f"{value / 1e12:.1f}"),
    Column("busy %", "busy", lambda value: f"{100 * value:.0f}"),
)
_BARS = (
    ("average_s", "average completion, h", HOUR_S),
    ("p99_s", "99 % completed within, h", HOUR_S),
    ("makespan_s", "makespan, h", HOUR_S),
    ("jain_sizes", "Jain's index over sizes", 1.0),
    ("restarts", "restarts per job", 1.0),
    ("crossed", "time across nodes, %", 0.01),
    ("network_bytes", "between nodes, TB", 1e12),
)
"""Figure, title, and what one unit of the axis is."""


class PlotImpossible(Exception):
    """matplotlib is missing."""


def table(rows: Sequence[Row]) -> Iterator[str]:
    """Yield a header, then a line for each policy with each placement; legend() explains the columns."""
    first = rows[0].figures()["average_s"].mean
    cells = [["policy", "placement", "x", *(column.title for column in COLUMNS)]]
    for row in rows:
        better = f"{first / row.figures()['average_s'].mean:.2f}"
        cells.append([row.policy, row.placement, better, *_cells(row)])
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for line in cells:
        left = [text.ljust(width) for text, width in zip(line[:2], widths[:2], strict=True)]
        right = [text.rjust(width) for text, width in zip(line[2:], widths[2:], strict=True)]
        yield "  ".join((*left, *right))


def _cells(row: Row) -> Iterator[str]:
    figures = row.figures()
    for column in COLUMNS:
        figure = figures[column.figure]
        spread = f" ±{column.show(figure.spread)}" if len(row.runs) > 1 else ""
        yield f"{column.show(figure.mean)}{spread}"


def legend() -> Iterator[str]:
    yield "x: how many times better the average is than in the first row"
    for column in COLUMNS:
        yield f"{column.title}: {UNITS[column.figure]}"


def plot(rows: Sequence[Row], path: Path) -> None:
    """Plot the distribution of completion times and a bar for each figure. Raises PlotImpossible."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise PlotImpossible("a plot needs matplotlib: pip install 'minicluster[examples]'") from error
    figure: Any = Figure(figsize=(16, 3 + 0.5 * len(rows)), layout="constrained")
    curves, *bars = figure.subplots(2, (1 + len(_BARS)) // 2).flat
    labels = [f"{row.policy}, {row.placement}" for row in rows]
    for row, label in zip(rows, labels, strict=True):
        hours = sorted(outcome.completion_s / HOUR_S for outcome in row.outcomes)
        curves.plot(hours, [(index + 1) / len(hours) for index in range(len(hours))], label=label)
    curves.set(xscale="log", xlabel="completion time, h", ylabel="share of the jobs", ylim=(0, 1))
    curves.legend(fontsize="x-small")
    for axes, (name, title, unit) in zip(bars, _BARS, strict=True):
        figures = [row.figures()[name] for row in rows]
        spreads = [one.spread / unit for one in figures] if len(rows[0].runs) > 1 else None
        axes.barh(range(len(rows)), [one.mean / unit for one in figures], xerr=spreads)
        axes.set_yticks(range(len(rows)), labels, fontsize="small")
        axes.invert_yaxis()
        axes.set_xlabel(title)
    figure.savefig(path)
