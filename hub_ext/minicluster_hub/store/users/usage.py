"""Who held slots when: written as it changes, summed up for a period."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sqlalchemy import insert, or_, select, update

from minicluster_hub.jobs.records import UseRecord
from minicluster_hub.store.database import Database
from minicluster_hub.store.rows import AnyRow
from minicluster_hub.store.tables.scheduling import USAGE


class UsageRows:
    """What the service asks of them: one transaction per method."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def since(self, moment: float, owner: str | None = None) -> list[UseRecord]:
        """Return what an owner (None: anybody) held at that moment or after it, in the order of its begin."""
        query = select(USAGE).where(or_(USAGE.c.ended_at.is_(None), USAGE.c.ended_at > moment))
        if owner is not None:
            query = query.where(USAGE.c.owner == owner)
        with self._database.read() as connection:
            return [_record(row) for row in connection.execute(query.order_by(USAGE.c.id))]

    def change(self, ended: Iterable[int], began: Sequence[UseRecord], now: float) -> list[UseRecord]:
        """Close rows and write new ones; return the new ones with their ids."""
        with self._database.write() as connection:
            over = update(USAGE).where(USAGE.c.id.in_(list(ended)), USAGE.c.ended_at.is_(None))
            connection.execute(over.values(ended_at=now))
            rows = [connection.execute(insert(USAGE).values(_values(use))) for use in began]
            ids = [row.inserted_primary_key[0] for row in rows if row.inserted_primary_key]
        return [use.with_id(number) for use, number in zip(began, ids, strict=True)]


def _record(row: AnyRow) -> UseRecord:
    return UseRecord(**row._mapping)


def _values(use: UseRecord) -> dict[str, object]:
    return {name: getattr(use, name) for name in UseRecord.__slots__ if name != "id"}
