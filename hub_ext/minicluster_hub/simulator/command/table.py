"""The results as lines of text: a row for each policy with each placement."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from minicluster_hub.simulator.compare import Row
from minicluster_hub.simulator.metrics import UNITS, Spread

HOUR_S = 3600.0


@dataclass(frozen=True, slots=True)
class Column:
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
    Column("Jain sizes", "jain_sizes", lambda value: f"{value:.2f}"),
    Column("Jain owners", "jain_owners", lambda value: f"{value:.2f}"),
    Column("restarts", "restarts", lambda value: f"{value:.2f}"),
    Column("cross-node %", "crossed", lambda value: f"{100 * value:.1f}"),
    Column("needless %", "needless", lambda value: f"{100 * value:.1f}"),
    Column("network TB", "network_bytes", lambda value: f"{value / 1e12:.1f}"),
    Column("busy %", "busy", lambda value: f"{100 * value:.0f}"),
)


def table(rows: Sequence[Row]) -> Iterator[str]:
    """Yield the lines; legend() says what the columns are."""
    first = rows[0].figures()["average_s"].mean
    cells = [["policy", "placement", "x", *(column.title for column in COLUMNS)]]
    for row in rows:
        figures = row.figures()
        better = f"{first / figures['average_s'].mean:.2f}"
        cells.append([row.policy, row.placement, better, *_shown(figures, len(row.runs))])
    widths = [max(len(line[index]) for line in cells) for index in range(len(cells[0]))]
    for line in cells:
        left = [text.ljust(width) for text, width in zip(line[:2], widths[:2], strict=True)]
        right = [text.rjust(width) for text, width in zip(line[2:], widths[2:], strict=True)]
        yield "  ".join((*left, *right))


def legend() -> Iterator[str]:
    yield "x: how many times better the average is than in the first row"
    for column in COLUMNS:
        yield f"{column.title}: {UNITS[column.figure]}"


def _shown(figures: Mapping[str, Spread], runs: int) -> Iterator[str]:
    for column in COLUMNS:
        figure = figures[column.figure]
        spread = f" ±{column.show(figure.spread)}" if runs > 1 else ""
        yield f"{column.show(figure.mean)}{spread}"
