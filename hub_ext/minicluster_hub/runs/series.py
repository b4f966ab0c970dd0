"""The values that a run's ranks logged: one SQLite file per run, which is only appended to.

`points` has each value. `nodes` has groups of neighbours: 16 points are a node of level 1, 16 nodes of a
level are one of the next. So a picture of a million points reads some thousand rows. The file also says how
much of each stream of records it has: points and offsets are stored in one transaction, so that none is lost
or doubled.
"""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from minicluster.wire import Curve, MediaList, SeriesInfo
from minicluster_hub.diagnosis.speed import StepWindow
from minicluster_hub.runs import media as media_index
from minicluster_hub.runs import step_times as speed_table
from minicluster_hub.runs.media import NewMedia, Place
from minicluster_hub.runs.step_times import NewTimes

FACTOR = 16
"""Points of a node of level 1, and nodes of a node of the next level."""
MOST_NAMES = 1000
MOST_RUN_POINTS = 5_000_000
LOST_AFTER_S = 5.0
"""A rank that logs nothing for this long while another does is lost: the curve goes on with the other."""
_BUSY_S = 10.0
_SCHEMA = """
CREATE TABLE IF NOT EXISTS offsets (
    attempt INTEGER, stream TEXT, offset INTEGER, PRIMARY KEY (attempt, stream));
CREATE TABLE IF NOT EXISTS dropped (points INTEGER);
CREATE TABLE IF NOT EXISTS series (
    id INTEGER PRIMARY KEY, name TEXT, rank INTEGER, attempt INTEGER, points INTEGER DEFAULT 0,
    last REAL, low REAL, high REAL, last_step REAL, last_at REAL, UNIQUE (name, rank));
CREATE TABLE IF NOT EXISTS points (
    series INTEGER, n INTEGER, step REAL, at REAL, value REAL, PRIMARY KEY (series, n)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS nodes (
    series INTEGER, level INTEGER, n INTEGER, step_low REAL, step_high REAL, at_low REAL, at_high REAL,
    low REAL, high REAL, mean REAL, PRIMARY KEY (series, level, n)) WITHOUT ROWID;
"""

Point = tuple[float | None, float, float]
"""Step (None: the number of the point), seconds since the epoch, value."""
Row = tuple[float, float, float | None, float | None, float | None]
"""Step, seconds since the epoch, mean, least and largest value."""


@dataclass
class Batch:
    """New points of one attempt by metric and rank, and the offsets of the streams behind them."""

    attempt: int
    points: dict[tuple[str, int], list[Point]] = field(default_factory=dict)
    offsets: dict[str, int] = field(default_factory=dict)
    media: list[NewMedia] = field(default_factory=list[NewMedia])
    times: list[NewTimes] = field(default_factory=list[NewTimes])


@dataclass(frozen=True)
class Span:
    """Which part of a run is shown. axis: "step" or "time" (seconds since the epoch); None: unlimited."""

    axis: str = "step"
    low: float | None = None
    high: float | None = None


class SeriesFile:
    """A run's series. Each method opens the file and closes it again; for use in worker threads, too.

    Raises sqlite3.Error where the file or the disk does.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def offsets(self) -> dict[tuple[int, str], int]:
        """Return how many bytes of each stream are stored, by the attempt's number and the stream's name."""
        if not self.path.exists():
            return {}
        with self._reading() as connection:
            rows = connection.execute("SELECT attempt, stream, offset FROM offsets")
            return {(attempt, stream): offset for attempt, stream, offset in rows}

    def append(self, batch: Batch) -> None:
        """Store a batch. Points of an earlier attempt that the new one repeats are replaced."""
        with self._writing() as connection:
            for (name, rank), points in batch.points.items():
                _append(connection, name, rank, batch.attempt, points)
            if batch.media:
                media_index.append(connection, batch.media)
            if batch.times:
                speed_table.append(connection, batch.times)
            for stream, offset in batch.offsets.items():
                row = (batch.attempt, stream, offset)
                connection.execute("INSERT OR REPLACE INTO offsets VALUES (?, ?, ?)", row)

    def series(self) -> tuple[SeriesInfo, ...]:
        """Return what was logged, by name and rank."""
        if not self.path.exists():
            return ()
        with self._reading() as connection:
            return tuple(_info(row) for row in _series_rows(connection))

    def dropped(self) -> int:
        """Return how many points were beyond a limit."""
        if not self.path.exists():
            return 0
        with self._reading() as connection:
            return connection.execute("SELECT COALESCE(SUM(points), 0) FROM dropped").fetchone()[0]

    def media(self, names: Sequence[str] = (), after: int = 0, most: int = 100) -> MediaList:
        """Return the run's pictures, histograms and tables behind a number."""
        if not self.path.exists():
            return MediaList()
        with self._reading() as connection:
            return media_index.listed(connection, names, after, most)

    def media_place(self, number: int) -> Place | None:
        """Return where one of them is."""
        if not self.path.exists():
            return None
        with self._reading() as connection:
            return media_index.place_of(connection, number)

    def step_times(self) -> dict[int, list[StepWindow]]:
        """Return each rank's newest step times."""
        if not self.path.exists():
            return {}
        with self._reading() as connection:
            return speed_table.by_rank(connection)

    def curves(
        self, run: int, names: Sequence[str], span: Span, most: int, rank: int | None = None
    ) -> list[Curve]:
        """Return curves of about `most` points. rank None: the lowest one, continued by the next if lost."""
        if not self.path.exists():
            return []
        with self._reading() as connection:
            found = _by_name(connection, names, rank)
            return [_curve(connection, run, series, span, most) for series in found]

    def points(self, names: Sequence[str] = ()) -> Iterator[tuple[str, int, float, float, float]]:
        """Yield name, rank, step, time and value of each point, by series."""
        if not self.path.exists():
            return
        with self._reading() as connection:
            for series in _series_rows(connection):
                if names and series["name"] not in names:
                    continue
                query = "SELECT step, at, value FROM points WHERE series = ? ORDER BY n"
                for step, at, value in connection.execute(query, (series["id"],)):
                    yield series["name"], series["rank"], step, at, math.nan if value is None else value

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        address = f"{self.path.absolute().as_uri()}?mode=ro"
        # A long export is read piece by piece, each in another thread.
        connection = sqlite3.connect(address, uri=True, timeout=_BUSY_S, check_same_thread=False)
        connection.row_factory = sqlite3.Row
        try:
            with connection:
                yield connection
        finally:
            connection.close()

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        connection = sqlite3.connect(self.path, timeout=_BUSY_S)
        connection.row_factory = sqlite3.Row
        try:
            # The streams of records still have all of it, should the machine fail in the middle.
            connection.execute("PRAGMA synchronous = OFF")
            connection.executescript(_SCHEMA + media_index.SCHEMA + speed_table.SCHEMA)
            with connection:
                yield connection
        finally:
            connection.close()


def _series_rows(connection: sqlite3.Connection) -> list[sqlite3.Row]:
    return connection.execute("SELECT * FROM series ORDER BY name, rank").fetchall()


def _info(row: sqlite3.Row) -> SeriesInfo:
    numbers = {name: _finite(row[name]) for name in ("last", "low", "high", "last_step", "last_at")}
    return SeriesInfo(name=row["name"], rank=row["rank"], points=row["points"], **numbers)


def _finite(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else value


# Appending.


def _append(
    connection: sqlite3.Connection, name: str, rank: int, attempt: int, points: Sequence[Point]
) -> None:
    series = _find_or_add(connection, name, rank, attempt)
    if series is None:
        _drop(connection, len(points))
        return
    count: int = series["points"]
    if attempt > series["attempt"]:
        count = _rewind(connection, series["id"], count, points[0][0])
    total = connection.execute("SELECT SUM(points) FROM series").fetchone()[0] - series["points"] + count
    room = max(0, MOST_RUN_POINTS - total)
    if len(points) > room:
        _drop(connection, len(points) - room)
        points = points[:room]
    rows = [
        (series["id"], count + at, count + at if step is None else step, moment, value)
        for at, (step, moment, value) in enumerate(points)
    ]
    connection.executemany("INSERT INTO points VALUES (?, ?, ?, ?, ?)", rows)
    _add_nodes(connection, series["id"], count, count + len(rows))
    _update(connection, series["id"], attempt, count + len(rows))


def _find_or_add(connection: sqlite3.Connection, name: str, rank: int, attempt: int) -> sqlite3.Row | None:
    """Return a series, a new one if there is none yet; None if the run has too many."""
    key = (name, rank)
    row = connection.execute("SELECT * FROM series WHERE name = ? AND rank = ?", key).fetchone()
    if row is None and connection.execute("SELECT COUNT(*) FROM series").fetchone()[0] < MOST_NAMES:
        connection.execute("INSERT INTO series (name, rank, attempt) VALUES (?, ?, ?)", (*key, attempt))
        row = connection.execute("SELECT * FROM series WHERE name = ? AND rank = ?", key).fetchone()
    return row


def _drop(connection: sqlite3.Connection, points: int) -> None:
    connection.execute("INSERT INTO dropped VALUES (?)", (points,))


def _rewind(connection: sqlite3.Connection, series: int, count: int, step: float | None) -> int:
    """Delete the points that a new attempt logs again, from its first step on; return how many are left."""
    if step is None:
        return count
    query = "SELECT COALESCE(MIN(n), ?) FROM points WHERE series = ? AND step >= ?"
    left: int = connection.execute(query, (count, series, step)).fetchone()[0]
    connection.execute("DELETE FROM points WHERE series = ? AND n >= ?", (series, left))
    for level in _levels(count):
        whole = left // FACTOR**level
        connection.execute(
            "DELETE FROM nodes WHERE series = ? AND level = ? AND n >= ?", (series, level, whole)
        )
    return left


def _levels(count: int) -> range:
    """Return the levels that so many points have nodes of."""
    levels = 0
    while count >= FACTOR ** (levels + 1):
        levels += 1
    return range(1, levels + 1)


def _add_nodes(connection: sqlite3.Connection, series: int, before: int, count: int) -> None:
    """Add the nodes that are complete now."""
    for level in _levels(count):
        first, end = before // FACTOR**level, count // FACTOR**level
        if first == end:
            return
        columns = "MIN(step), MAX(step), MIN(at), MAX(at), MIN(value), MAX(value), AVG(value)"
        source = "points WHERE"
        if level > 1:
            columns = (
                "MIN(step_low), MAX(step_high), MIN(at_low), MAX(at_high), MIN(low), MAX(high), AVG(mean)"
            )
            source = f"nodes WHERE level = {level - 1} AND"
        connection.execute(
            f"INSERT INTO nodes SELECT series, {level}, n / {FACTOR}, {columns} "  # noqa: S608 - only numbers
            f"FROM {source} series = ? AND n >= ? AND n < ? GROUP BY n / {FACTOR}",
            (series, first * FACTOR, end * FACTOR),
        )


def _update(connection: sqlite3.Connection, series: int, attempt: int, count: int) -> None:
    """Write a series' summary anew, from its nodes and the points behind them."""
    rows = list(_rows(connection, series, 0, count, max(_levels(count), default=0), 1))
    low = min((row[3] for row in rows if row[3] is not None), default=None)
    high = max((row[4] for row in rows if row[4] is not None), default=None)
    last = connection.execute(
        "SELECT step, at, value FROM points WHERE series = ? AND n = ?", (series, count - 1)
    ).fetchone() or (None, None, None)
    connection.execute(
        "UPDATE series SET attempt = ?, points = ?, low = ?, high = ?, last_step = ?, last_at = ?, last = ? "
        "WHERE id = ?",
        (attempt, count, low, high, *last, series),
    )


# Reading.


def _by_name(
    connection: sqlite3.Connection, names: Iterable[str], rank: int | None
) -> list[list[sqlite3.Row]]:
    """Return the ranks' series of each name that there is, the lowest rank first."""
    found: dict[str, list[sqlite3.Row]] = {}
    for row in _series_rows(connection):
        if rank is None or row["rank"] == rank:
            found.setdefault(row["name"], []).append(row)
    return [found[name] for name in dict.fromkeys(names) if name in found]


def _curve(
    connection: sqlite3.Connection, run: int, ranks: Sequence[sqlite3.Row], span: Span, most: int
) -> Curve:
    first, *others = ranks
    rows, points = _read(connection, first, span, most)
    until, seen_at = first["last_step"], first["last_at"] or 0.0
    for other in others:
        if (other["last_at"] or 0.0) - seen_at > LOST_AFTER_S:
            more, count = _read(connection, other, span, most)
            more = [row for row in more if until is None or row[0] > until]
            rows, points = [*rows, *more], points + min(count, len(more) if more else 0)
            until, seen_at = other["last_step"], other["last_at"]
    return _to_curve(run, first["name"], first["rank"], rows, points)


def _to_curve(run: int, name: str, rank: int, rows: Sequence[Row], points: int) -> Curve:
    grouped = points > len(rows)
    return Curve(
        run=run,
        name=name,
        rank=rank,
        step=tuple(row[0] for row in rows),
        at=tuple(row[1] for row in rows),
        value=tuple(_finite(row[2]) for row in rows),
        low=tuple(_finite(row[3]) for row in rows) if grouped else (),
        high=tuple(_finite(row[4]) for row in rows) if grouped else (),
        points=points,
    )


def _read(
    connection: sqlite3.Connection, series: sqlite3.Row, span: Span, most: int
) -> tuple[list[Row], int]:
    """Return a series' rows in the span, and how many points these stand for."""
    begin, end = _range(connection, series["id"], series["points"], span)
    level = 0
    while (end - begin) // FACTOR ** (level + 1) >= most:
        level += 1
    together = max(1, math.ceil((end - begin) / FACTOR**level / most))
    return list(_rows(connection, series["id"], begin, end, level, together)), end - begin


def _rows(
    connection: sqlite3.Connection, series: int, begin: int, end: int, level: int, together: int
) -> Iterator[Row]:
    """Yield points begin..end as nodes of a level, `together` in one row; then what these do not cover."""
    size = FACTOR**level
    covered = end // size * size
    if level == 0:
        query = (
            "SELECT MAX(step), MAX(at), AVG(value), MIN(value), MAX(value) FROM points "
            "WHERE series = ? AND n >= ? AND n < ? GROUP BY (n - ?) / ? ORDER BY MIN(n)"
        )
        yield from map(tuple, connection.execute(query, (series, begin, end, begin, together)))
        return
    query = (
        "SELECT MAX(step_high), MAX(at_high), AVG(mean), MIN(low), MAX(high) FROM nodes "
        "WHERE series = ? AND level = ? AND n >= ? AND n < ? GROUP BY (n - ?) / ? ORDER BY MIN(n)"
    )
    first = begin // size
    yield from map(tuple, connection.execute(query, (series, level, first, covered // size, first, together)))
    if covered < end:
        yield from _rows(connection, series, max(begin, covered), end, level - 1, together)


def _range(connection: sqlite3.Connection, series: int, count: int, span: Span) -> tuple[int, int]:
    """Return the points in a span, from the first to behind the last; whole nodes are enough on the way."""
    begin, end = 0, count
    if span.low is None and span.high is None:
        return begin, end
    low = -math.inf if span.low is None else span.low
    high = math.inf if span.high is None else span.high
    axis = "at" if span.axis == "time" else "step"
    for level in reversed(range(max(_levels(count), default=0) + 1)):
        size = FACTOR**level
        covered = end // size * size
        columns, where = (f"{axis}_low", f"{axis}_high"), "nodes WHERE level = ? AND"
        if level == 0:
            columns, where = (axis, axis), "points WHERE ? = 0 AND"
        found = connection.execute(
            f"SELECT MIN(n), MAX(n) FROM {where} series = ? AND n >= ? AND n < ? "  # noqa: S608 - our own names
            f"AND {columns[1]} >= ? AND {columns[0]} <= ?",
            (level, series, begin // size, covered // size, low, high),
        ).fetchone()
        behind = (covered, end) if covered < end else None
        if found[0] is None:
            if behind is None:
                return begin, begin
            begin = max(begin, covered)
        else:
            begin = max(begin, found[0] * size)
            end = end if behind else min(end, (found[1] + 1) * size)
    return begin, end


def last_values(series: Iterable[SeriesInfo]) -> Mapping[str, SeriesInfo]:
    """Return the series of the lowest rank by name, or of the next one if that rank was lost."""
    found: dict[str, SeriesInfo] = {}
    for one in series:
        known = found.get(one.name)
        if known is None or (one.last_at or 0.0) - (known.last_at or 0.0) > LOST_AFTER_S:
            found[one.name] = one
    return found
