"""The policies that ordered the jobs, one after the other: the newest that was not taken back is in force."""

from __future__ import annotations

from sqlalchemy import insert, select, update

from minicluster.wire import PolicyChoice, PolicyInForce
from minicluster_hub.store.database import Database
from minicluster_hub.store.rows import AnyRow, clean
from minicluster_hub.store.scheduling_tables import POLICIES

_NEWEST = select(POLICIES).order_by(POLICIES.c.id.desc()).limit(1)
_IN_FORCE = _NEWEST.where(POLICIES.c.ended == "")


class Policies:
    """What the service asks of them: one transaction per method."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def in_force(self) -> PolicyInForce | None:
        """Return what an admin chose last, None if nobody ever did or all of it was taken back."""
        with self._database.read() as connection:
            row = connection.execute(_IN_FORCE).one_or_none()
        return None if row is None else _in_force(row)

    def trouble(self) -> str:
        """Return why the last choice was taken back, "" if it was not."""
        with self._database.read() as connection:
            row = connection.execute(_NEWEST).one_or_none()
        return "" if row is None else row.ended

    def choose(self, choice: PolicyChoice, by: str, now: float) -> None:
        """Put a choice in force."""
        values = {"choice": choice.model_dump_json(), "chosen_by": clean(by), "since": now, "ended": ""}
        with self._database.write() as connection:
            connection.execute(insert(POLICIES).values(values))

    def take_back(self, why: str) -> None:
        """End what is in force: the one before it is in force again."""
        with self._database.write() as connection:
            row = connection.execute(_IN_FORCE).one_or_none()
            if row is not None:
                ended = update(POLICIES).where(POLICIES.c.id == row.id)
                connection.execute(ended.values(ended=clean(why) or "taken back"))


def _in_force(row: AnyRow) -> PolicyInForce:
    choice = PolicyChoice.model_validate_json(row.choice)
    return PolicyInForce(choice=choice, by=row.chosen_by, since=row.since)
