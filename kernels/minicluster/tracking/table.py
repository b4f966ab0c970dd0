"""The table of runs: a pandas table whose runs' curves can be read and drawn."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, cast

import pandas as pd

from minicluster.errors import MiniclusterError
from minicluster.tracking.find import service_of_notebook
from minicluster.wire import MOST_POINTS, MOST_RUNS, Curve, Run

METRICS = "metrics."
_POINTS = 1000
_AXES = ("step", "time")
_COLUMNS = ("run", "name", "metric", "rank", "step", "at", "seconds", "value", "low", "high")


class NothingLogged(MiniclusterError):
    """None of the runs logged this metric."""


class RunTable(pd.DataFrame):
    """One row per run. Selections of its rows are such tables, too.

    Columns: id, name, state, created, duration (none before its start), tags, note, ranks, gpus, rerun_of,
    sweep, and the last value of each metric: metrics.loss.
    """

    @property
    def _constructor(self) -> type[RunTable]:
        return RunTable

    @classmethod
    def of(cls, runs: Iterable[Run]) -> RunTable:
        """Make the table."""
        now = time.time()
        rows = list(runs)
        heads = [
            "id",
            "name",
            "state",
            "created",
            "duration",
            "tags",
            "note",
            "ranks",
            "gpus",
            "rerun_of",
            "sweep",
        ]
        metrics = dict.fromkeys(name for run in rows for name in run.metrics)
        columns = [*heads, *(f"{METRICS}{name}" for name in metrics)]
        table = cls([_row(run, now) for run in rows], columns=columns)
        table["created"] = pd.to_datetime(table["created"], unit="s", utc=True)
        table["duration"] = pd.to_timedelta(pd.Series(table["duration"], dtype=float), unit="s").dt.round("s")
        for name in ("ranks", "rerun_of", "sweep"):
            table[name] = table[name].astype("Int64")
        return table

    @property
    def plot(self) -> RunPlot:
        """Draw curves: `.plot("loss")`; with other arguments, pandas' own plots of the table's columns."""
        return RunPlot(self)

    def curves(self, *names: str, points: int = _POINTS) -> pd.DataFrame:
        """Return what the runs logged, one row per point.

        Columns: run (its number), name, metric, rank, step, at (a time), seconds (since the run's start),
        value; and low and high, the extremes of each group of points, if a run has more than `points`.
        Raises NothingLogged, ServiceError.
        """
        rows = [row for curve in self._curves(names, points) for row in curve]
        if not rows:
            raise NothingLogged(
                f"None of these {len(self)} runs has logged {' or '.join(map(repr, names)) or 'a metric'}.",
                _known(self),
            )
        found = pd.DataFrame(rows, columns=list(_COLUMNS))
        found["at"] = pd.to_datetime(found["at"], unit="s", utc=True)
        return found

    def _curves(self, names: Sequence[str], points: int) -> Iterator[Iterator[tuple[Any, ...]]]:
        if "id" not in self.columns:
            raise NothingLogged(
                "This table no longer says which runs it is of.", "Make it again: mc.runs([67, 68])"
            )
        titles = dict(zip(self["id"], self["name"], strict=True)) if "name" in self.columns else {}
        wanted = names or tuple(one.removeprefix(METRICS) for one in self.columns if one.startswith(METRICS))
        service = service_of_notebook()
        for some in _in_groups([int(one) for one in self["id"]]) if wanted else ():
            answer = service.curves(some, wanted, min(points, MOST_POINTS))
            for curve in answer.curves:
                start = answer.started_at.get(curve.run)
                yield _points(curve, str(titles.get(curve.run, "")), start)


class RunPlot(pd.DataFrame.plot):  # pyright: ignore[reportGeneralTypeIssues] - on the class, it is a class
    """`table.plot("loss")`, and all of pandas' own plots."""

    def __call__(
        self, *args: Any, axis: str = "step", ax: Any = None, points: int = _POINTS, **more: Any
    ) -> Any:
        """Draw a metric's curve of each run over one another; return matplotlib's axes.

        axis: "step", or "time" for seconds since the start of each run. ax: axes to draw into.
        """
        table = self._parent
        if not args or not isinstance(args[0], str) or args[0] in table.columns:
            return super().__call__(*args, **({"ax": ax} if ax is not None else {}), **more)
        if axis not in _AXES:
            raise ValueError(f"axis={axis!r}: it is 'step' or 'time'")
        return draw(table.curves(*args, points=points), axis, ax, **more)


def draw(curves: pd.DataFrame, axis: str = "step", ax: Any = None, **more: Any) -> Any:
    """Draw curves over one another, each with the range of its groups of points; return the axes.

    curves: of RunTable.curves. more: arguments of matplotlib's `Axes.plot`.
    """
    if ax is None:
        from matplotlib import pyplot

        _, ax = pyplot.subplots()
    across = "step" if axis == "step" else "seconds"
    metrics = list(dict.fromkeys(curves["metric"]))
    for key, points in curves.groupby(["run", "metric", "rank"], sort=False):
        run, metric, rank = cast("tuple[int, str, int]", key)
        # Parts of a label: what tells this curve from the others.
        parts = [f"{run} {points['name'].iloc[0]}".strip(), metric if len(metrics) > 1 else ""]
        parts.append(f"rank {rank}" if rank else "")
        (line,) = ax.plot(points[across], points["value"], label=", ".join(filter(None, parts)), **more)
        if bool(points["low"].notna().any()):
            ax.fill_between(points[across], points["low"], points["high"], color=line.get_color(), alpha=0.15)
    ax.set_xlabel("step" if axis == "step" else "seconds since the start")
    ax.set_ylabel(metrics[0] if len(metrics) == 1 else "")
    ax.legend()
    return ax


def _row(run: Run, now: float) -> dict[str, Any]:
    metrics = {f"{METRICS}{name}": last.value for name, last in run.metrics.items()}
    started = run.started_at
    return {
        "id": run.id,
        "name": run.name,
        "state": run.state.value,
        "created": run.created_at,
        "duration": None if started is None else (run.ended_at or now) - started,
        "tags": list(run.tags),
        "note": run.note,
        "ranks": run.world_size,
        "gpus": run.gpus,
        "rerun_of": run.rerun_of,
        "sweep": run.sweep,
        **metrics,
    }


def _points(curve: Curve, title: str, start: float | None) -> Iterator[tuple[Any, ...]]:
    low = curve.low or (None,) * len(curve.value)
    high = curve.high or (None,) * len(curve.value)
    for step, at, value, least, most in zip(curve.step, curve.at, curve.value, low, high, strict=True):
        since = None if start is None else at - start
        yield curve.run, title, curve.name, curve.rank, step, at, since, value, least, most


def _in_groups(ids: Sequence[int]) -> Iterator[tuple[int, ...]]:
    for start in range(0, len(ids), MOST_RUNS):
        yield tuple(ids[start : start + MOST_RUNS])


def _known(table: pd.DataFrame) -> str:
    names = [name.removeprefix(METRICS) for name in table.columns if name.startswith(METRICS)]
    return f"They have logged: {', '.join(names)}." if names else "mc.log(step=step, loss=loss) logs a value."
