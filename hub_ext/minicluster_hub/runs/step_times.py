"""The newest step times of a run's ranks, in the file of its series."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass

from minicluster.wire import Record
from minicluster_hub.diagnosis.speed import StepWindow

_OF_RANK = 15
"""Records of a rank that are kept: half a minute."""
_MOST_ROWS = 20_000
SCHEMA = """
CREATE TABLE IF NOT EXISTS speed (
    id INTEGER PRIMARY KEY, rank INTEGER, at REAL, steps INTEGER, seconds REAL, data REAL,
    communication REAL);
CREATE INDEX IF NOT EXISTS speed_by_rank ON speed (rank, id);
"""


@dataclass(frozen=True)
class NewTimes:
    """A record of a rank's step times."""

    rank: int
    window: StepWindow

    @classmethod
    def of(cls, record: Record) -> NewTimes | None:
        times = record.speed
        if times is None:
            return None
        window = StepWindow(record.at, times.steps, times.seconds, times.data, times.communication)
        return cls(record.rank, window)


def append(connection: sqlite3.Connection, times: Sequence[NewTimes]) -> None:
    """Store what came, and forget what is older than the newest records of its rank."""
    for one in times[-_MOST_ROWS:]:
        window = one.window
        connection.execute(
            "INSERT INTO speed (rank, at, steps, seconds, data, communication) VALUES (?, ?, ?, ?, ?, ?)",
            (one.rank, window.at, window.steps, window.seconds, window.data, window.communication),
        )
    for rank in {one.rank for one in times}:
        connection.execute(
            "DELETE FROM speed WHERE rank = ? AND id NOT IN "
            "(SELECT id FROM speed WHERE rank = ? ORDER BY id DESC LIMIT ?)",
            (rank, rank, _OF_RANK),
        )
    connection.execute(
        "DELETE FROM speed WHERE id <= (SELECT COALESCE(MAX(id), 0) FROM speed) - ?", (_MOST_ROWS,)
    )


def by_rank(connection: sqlite3.Connection) -> dict[int, list[StepWindow]]:
    """Return each rank's newest records, in order."""
    found: dict[int, list[StepWindow]] = {}
    query = "SELECT rank, at, steps, seconds, data, communication FROM speed ORDER BY rank, id"
    for rank, *window in connection.execute(query):
        found.setdefault(rank, []).append(StepWindow(*window))
    return found
