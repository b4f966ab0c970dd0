"""The groups of owners: JupyterHub's own, as it named them when the owner last submitted a job.

`store.owners.groups_of("ada")` answers at any time, after a restart of the service too. The scheduler, the
quotas and usage accounting all read them here.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy import Connection, insert, or_, select, update

from minicluster.wire import ActiveAllowances, Allowances
from minicluster_hub.jobs.records import UseRecord
from minicluster_hub.store.database import Database, DatabasePart
from minicluster_hub.store.rows import add_row, clean
from minicluster_hub.store.tables.scheduling import ALLOWANCES, OWNER_GROUPS, USAGE

Groups = tuple[str, ...]
"""Names of groups, in the order of the alphabet."""


class OwnerQueries(DatabasePart):
    """One transaction per method; reads are cached."""

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self._known: dict[str, Groups] | None = None

    def groups_of(self, owner: str) -> Groups:
        """Return the groups of an owner, () if there are none or nobody has seen the owner yet."""
        return self.groups().get(owner, ())

    def groups(self) -> Mapping[str, Groups]:
        """Return the groups of all owners that were ever seen."""
        if self._known is None:
            with self._database.read() as connection:
                rows = connection.execute(select(OWNER_GROUPS.c.owner, OWNER_GROUPS.c.group_names))
                self._known = {row.owner: tuple(json.loads(row.group_names)) for row in rows}
        return self._known

    def note(self, owner: str, groups: Iterable[str], now: float) -> bool:
        """Store an owner's groups; return whether they changed."""
        named = tuple(sorted({clean(name) for name in groups}))
        if named == self.groups_of(owner):
            return False
        with self._database.write() as connection:
            _write(connection, owner, {"group_names": json.dumps(named), "seen_at": now})
        self._known = {**self.groups(), owner: named}
        return True

    def forget_known(self) -> None:
        """Drop the cache: another service may have written."""
        self._known = None


def _write(connection: Connection, owner: str, values: Mapping[str, object]) -> None:
    changed = connection.execute(update(OWNER_GROUPS).where(OWNER_GROUPS.c.owner == owner).values(values))
    if not changed.rowcount:
        connection.execute(insert(OWNER_GROUPS).values(owner=owner, **values))


# Quotas and weights that admins chose, one choice after the other: the newest is active.


class AllowanceQueries(DatabasePart):
    """One transaction per method."""

    def active(self) -> ActiveAllowances | None:
        """Return what an admin chose last, None if nobody ever did."""
        newest = select(ALLOWANCES).order_by(ALLOWANCES.c.id.desc()).limit(1)
        with self._database.read() as connection:
            row = connection.execute(newest).one_or_none()
        if row is None:
            return None
        choice = Allowances.model_validate_json(row.choice)
        return ActiveAllowances(allowances=choice, by=row.chosen_by, since=row.since)

    def choose(self, choice: Allowances, by: str, now: float) -> None:
        values = {"choice": choice.model_dump_json(), "chosen_by": clean(by), "since": now}
        with self._database.write() as connection:
            connection.execute(insert(ALLOWANCES).values(values))


# Who held slots when: written at each change, summed up for a period.


class UsageQueries(DatabasePart):
    """One transaction per method."""

    def since(self, moment: float, owner: str | None = None) -> list[UseRecord]:
        """Return what an owner (None: anybody) held at that moment or later, the earliest first."""
        query = select(USAGE).where(or_(USAGE.c.ended_at.is_(None), USAGE.c.ended_at > moment))
        if owner is not None:
            query = query.where(USAGE.c.owner == owner)
        with self._database.read() as connection:
            return [UseRecord(**row._mapping) for row in connection.execute(query.order_by(USAGE.c.id))]

    def change(self, ended: Iterable[int], began: Sequence[UseRecord], now: float) -> list[UseRecord]:
        """Close rows and write new ones; return the new ones with their ids."""
        with self._database.write() as connection:
            over = update(USAGE).where(USAGE.c.id.in_(list(ended)), USAGE.c.ended_at.is_(None))
            connection.execute(over.values(ended_at=now))
            return [replace(use, id=add_row(connection, USAGE, _values(use))) for use in began]


def _values(use: UseRecord) -> dict[str, Any]:
    return {name: getattr(use, name) for name in UseRecord.__slots__ if name != "id"}
