"""What admins gave to whom, one choice after the other: the newest is in force."""

from __future__ import annotations

from sqlalchemy import insert, select

from minicluster.wire import Allowances, AllowancesInForce
from minicluster_hub.store.database import Database
from minicluster_hub.store.rows import clean
from minicluster_hub.store.tables.scheduling import ALLOWANCES


class AllowanceRows:
    """What the service asks of them: one transaction per method."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def in_force(self) -> AllowancesInForce | None:
        """Return what an admin chose last, None if nobody ever did."""
        newest = select(ALLOWANCES).order_by(ALLOWANCES.c.id.desc()).limit(1)
        with self._database.read() as connection:
            row = connection.execute(newest).one_or_none()
        if row is None:
            return None
        choice = Allowances.model_validate_json(row.choice)
        return AllowancesInForce(allowances=choice, by=row.chosen_by, since=row.since)

    def choose(self, choice: Allowances, by: str, now: float) -> None:
        values = {"choice": choice.model_dump_json(), "chosen_by": clean(by), "since": now}
        with self._database.write() as connection:
            connection.execute(insert(ALLOWANCES).values(values))
