"""The index of a run's pictures, histograms and tables, in the file of its series.

The content stays where the agent's report brought it: in a stream of records, of which the index has the
place. So nothing is stored twice, and the run's output is in its owner's quota as before.
"""

from __future__ import annotations

import base64
import binascii
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import ValidationError

from minicluster.wire import MediaInfo, MediaList, MediaNames, Record

MOST_MEDIA = 5000
"""Of a run; further ones are only counted."""
_MOST_NAMES = 500
SCHEMA = """
CREATE TABLE IF NOT EXISTS media (
    number INTEGER PRIMARY KEY, name TEXT, rank INTEGER, step REAL, at REAL, mime TEXT, size INTEGER,
    attempt INTEGER, stream TEXT, offset INTEGER, length INTEGER);
CREATE INDEX IF NOT EXISTS media_by_name ON media (name, number);
CREATE TABLE IF NOT EXISTS media_dropped (media INTEGER);
"""


@dataclass(frozen=True)
class Place:
    """Where the line of a record is: bytes of a stream of an attempt, by its number."""

    attempt: int
    stream: str
    offset: int
    length: int


@dataclass(frozen=True)
class NewMedia:
    """One that came. size_bytes: of its content."""

    name: str
    rank: int
    step: float | None
    at: float
    mime: str
    size_bytes: int
    place: Place

    @classmethod
    def of(cls, record: Record, place: Place) -> NewMedia | None:
        """Return what the index has of a record; None if it has no content."""
        media = record.media
        if media is None or not media.content:
            return None
        size = len(media.content) // 4 * 3
        return cls(media.name, record.rank, record.step, record.at, media.mime, size, place)


def append(connection: sqlite3.Connection, media: Sequence[NewMedia]) -> None:
    """Store what came; beyond the limit, count it."""
    (count,) = connection.execute("SELECT COUNT(*) FROM media").fetchone()
    kept = media[: max(0, MOST_MEDIA - count)]
    for one in kept:
        place = one.place
        row = (one.name, one.rank, one.step, one.at, one.mime, one.size_bytes)
        connection.execute(
            "INSERT INTO media (name, rank, step, at, mime, size, attempt, stream, offset, length) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (*row, place.attempt, place.stream, place.offset, place.length),
        )
    if len(kept) < len(media):
        connection.execute("INSERT INTO media_dropped VALUES (?)", (len(media) - len(kept),))


def listed(connection: sqlite3.Connection, names: Sequence[str], after: int, most: int) -> MediaList:
    """Return the media of these names (of all, if none is given) behind a number."""
    where = f"AND name IN ({', '.join('?' * len(names))})" if names else ""
    rows = connection.execute(
        f"SELECT * FROM media WHERE number > ? {where} ORDER BY number LIMIT ?",  # noqa: S608 - only marks
        (after, *names, most),
    )
    media = tuple(
        MediaInfo(
            number=row["number"],
            name=row["name"],
            rank=row["rank"],
            step=row["step"],
            at=row["at"],
            mime=row["mime"],
            size_bytes=row["size"],
        )
        for row in rows
    )
    found = connection.execute(
        "SELECT name, mime, COUNT(*) AS count FROM media GROUP BY name, mime ORDER BY name LIMIT ?",
        (_MOST_NAMES,),
    )
    kinds = tuple(MediaNames(name=row["name"], mime=row["mime"], count=row["count"]) for row in found)
    (dropped,) = connection.execute("SELECT COALESCE(SUM(media), 0) FROM media_dropped").fetchone()
    return MediaList(media=media, names=kinds, dropped=dropped)


def place_of(connection: sqlite3.Connection, number: int) -> Place | None:
    """Return where one is; None if the run has none of that number."""
    query = "SELECT attempt, stream, offset, length FROM media WHERE number = ?"
    row = connection.execute(query, (number,)).fetchone()
    return None if row is None else Place(*row)


def content_of(line: bytes) -> tuple[str, bytes] | None:
    """Return the MIME type and the content in the line of a record; None if it is not there any more."""
    try:
        media = Record.model_validate_json(line).media
        return None if media is None else (media.mime, base64.b64decode(media.content, validate=True))
    except (ValidationError, binascii.Error):
        return None
