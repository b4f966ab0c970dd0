"""Reservations, maintenance windows and drained nodes. Closed ones stay, with the reason."""

from __future__ import annotations

import json
from dataclasses import asdict

from sqlalchemy import select, update

from minicluster_hub.jobs.records import ReservationRecord
from minicluster_hub.store.database import Database, DatabasePart
from minicluster_hub.store.rows import AnyRow, add_row, clean
from minicluster_hub.store.tables.scheduling import RESERVATIONS


class ReservationQueries(DatabasePart):
    """One transaction per method. The open ones are cached: while a service leads, it alone changes them."""

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self._open: dict[int, ReservationRecord] | None = None

    def open(self) -> tuple[ReservationRecord, ...]:
        """Return those that are not closed, in the order in which they were made."""
        if self._open is None:
            with self._database.read() as connection:
                rows = connection.execute(select(RESERVATIONS).where(RESERVATIONS.c.closed_at.is_(None)))
                self._open = {row.id: _record(row) for row in rows}
        return tuple(self._open[number] for number in sorted(self._open))

    def closed_since(self, moment: float) -> list[ReservationRecord]:
        """Return those that were closed after that moment, the newest first."""
        query = (
            select(RESERVATIONS)
            .where(RESERVATIONS.c.closed_at > moment)
            .order_by(RESERVATIONS.c.closed_at.desc())
        )
        with self._database.read() as connection:
            return [_record(row) for row in connection.execute(query)]

    def make(self, record: ReservationRecord) -> ReservationRecord:
        """Store a new reservation; return it with its id."""
        values = asdict(record)
        del values["id"]
        values |= {
            "nodes": json.dumps(record.nodes),
            "note": clean(record.note),
            "holder": clean(record.holder),
        }
        with self._database.write() as connection:
            number = add_row(connection, RESERVATIONS, values)
        self._open = None
        return next(one for one in self.open() if one.id == number)

    def used(self, reservation_id: int, now: float) -> None:
        """Record that a holder uses it, so that it no longer lapses."""
        self._change(reservation_id, used_at=now)

    def close(self, reservation_id: int, reason: str, now: float) -> None:
        self._change(reservation_id, closed_at=now, closed_reason=clean(reason))

    def forget_known(self) -> None:
        """Drop the cache: another service may have written."""
        self._open = None

    def _change(self, reservation_id: int, **values: object) -> None:
        with self._database.write() as connection:
            changed = update(RESERVATIONS).where(
                RESERVATIONS.c.id == reservation_id, RESERVATIONS.c.closed_at.is_(None)
            )
            connection.execute(changed.values(values))
        self._open = None


def _record(row: AnyRow) -> ReservationRecord:
    return ReservationRecord(**{**row._mapping, "nodes": tuple(json.loads(row.nodes))})
