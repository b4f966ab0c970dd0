"""Claims on slots: reservations, maintenance windows, drained nodes. What is over stays, with the reason."""

from __future__ import annotations

import json
from dataclasses import asdict

from sqlalchemy import select, update

from minicluster_hub.jobs.records import ReservationRecord
from minicluster_hub.store.database import Database, DatabasePart
from minicluster_hub.store.rows import AnyRow, add_row, clean
from minicluster_hub.store.tables.scheduling import CLAIMS


class Claims(DatabasePart):
    """What the service asks of them: one transaction per method, and none to read what it wrote itself."""

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self._open: dict[int, ReservationRecord] | None = None

    def open(self) -> tuple[ReservationRecord, ...]:
        """Return those that were not taken back and have not lapsed, in the order in which they were made."""
        if self._open is None:
            with self._database.read() as connection:
                rows = connection.execute(select(CLAIMS).where(CLAIMS.c.over_at.is_(None)))
                self._open = {row.id: _record(row) for row in rows}
        return tuple(self._open[number] for number in sorted(self._open))

    def over_since(self, moment: float) -> list[ReservationRecord]:
        """Return those that were taken back, lapsed or ended after that moment, the newest first."""
        query = select(CLAIMS).where(CLAIMS.c.over_at > moment).order_by(CLAIMS.c.over_at.desc())
        with self._database.read() as connection:
            return [_record(row) for row in connection.execute(query)]

    def make(self, claim: ReservationRecord) -> ReservationRecord:
        """Keep a new claim; return it with its id."""
        values = asdict(claim)
        del values["id"]
        values |= {"nodes": json.dumps(claim.nodes), "note": clean(claim.note), "holder": clean(claim.holder)}
        with self._database.write() as connection:
            number = add_row(connection, CLAIMS, values)
        self._open = None
        return next(one for one in self.open() if one.id == number)

    def used(self, reservation_id: int, now: float) -> None:
        """Keep that a holder came: it does not lapse any more."""
        self._change(reservation_id, used_at=now)

    def end(self, reservation_id: int, why: str, now: float) -> None:
        self._change(reservation_id, over_at=now, over_why=clean(why))

    def forget_known(self) -> None:
        """Read them again: another service may have written some."""
        self._open = None

    def _change(self, reservation_id: int, **values: object) -> None:
        with self._database.write() as connection:
            changed = update(CLAIMS).where(CLAIMS.c.id == reservation_id, CLAIMS.c.over_at.is_(None))
            connection.execute(changed.values(values))
        self._open = None


def _record(row: AnyRow) -> ReservationRecord:
    return ReservationRecord(**{**row._mapping, "nodes": tuple(json.loads(row.nodes))})
