"""Claims on slots: reservations, maintenance windows, drained nodes. What is over stays, with the reason."""

from __future__ import annotations

import json
from dataclasses import asdict

from sqlalchemy import select, update

from minicluster_hub.jobs.records import ClaimRecord
from minicluster_hub.store.database import Database
from minicluster_hub.store.rows import AnyRow, add_row, clean
from minicluster_hub.store.tables.scheduling import CLAIMS


class Claims:
    """What the service asks of them: one transaction per method, and none to read what it wrote itself."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._open: dict[int, ClaimRecord] | None = None

    def open(self) -> tuple[ClaimRecord, ...]:
        """Return those that were not taken back and have not lapsed, in the order in which they were made."""
        if self._open is None:
            with self._database.read() as connection:
                rows = connection.execute(select(CLAIMS).where(CLAIMS.c.over_at.is_(None)))
                self._open = {row.id: _record(row) for row in rows}
        return tuple(self._open[number] for number in sorted(self._open))

    def over_since(self, moment: float) -> list[ClaimRecord]:
        """Return those that were taken back, lapsed or ended after that moment, the newest first."""
        query = select(CLAIMS).where(CLAIMS.c.over_at > moment).order_by(CLAIMS.c.over_at.desc())
        with self._database.read() as connection:
            return [_record(row) for row in connection.execute(query)]

    def make(self, claim: ClaimRecord) -> ClaimRecord:
        """Keep a new claim; return it with its id."""
        values = asdict(claim)
        del values["id"]
        values |= {"nodes": json.dumps(claim.nodes), "note": clean(claim.note), "holder": clean(claim.holder)}
        with self._database.write() as connection:
            number = add_row(connection, CLAIMS, values)
        self._open = None
        return next(one for one in self.open() if one.id == number)

    def used(self, claim_id: int, now: float) -> None:
        """Keep that a holder came: it does not lapse any more."""
        self._change(claim_id, used_at=now)

    def end(self, claim_id: int, why: str, now: float) -> None:
        self._change(claim_id, over_at=now, over_why=clean(why))

    def forget_known(self) -> None:
        """Read them again: another service may have written some."""
        self._open = None

    def _change(self, claim_id: int, **values: object) -> None:
        with self._database.write() as connection:
            changed = update(CLAIMS).where(CLAIMS.c.id == claim_id, CLAIMS.c.over_at.is_(None))
            connection.execute(changed.values(values))
        self._open = None


def _record(row: AnyRow) -> ClaimRecord:
    return ClaimRecord(**{**row._mapping, "nodes": tuple(json.loads(row.nodes))})
