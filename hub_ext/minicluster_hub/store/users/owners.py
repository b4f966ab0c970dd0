"""The groups of owners: JupyterHub's own, as it named them when the owner last submitted a job.

`store.owners.groups_of("ada")` answers at any time, after a restart of the service too. The scheduler, the
quotas and the accounts all ask here.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

from sqlalchemy import Connection, insert, select, update

from minicluster_hub.store.database import Database
from minicluster_hub.store.rows import clean
from minicluster_hub.store.tables.scheduling import OWNER_GROUPS

Groups = tuple[str, ...]
"""Names of groups, in the order of the alphabet."""


class Owners:
    """What the service asks of them: one transaction per method, and none for what is known already."""

    def __init__(self, database: Database) -> None:
        self._database = database
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
        """Keep an owner's groups; return whether they are others than before."""
        named = tuple(sorted({clean(name) for name in groups}))
        if named == self.groups_of(owner):
            return False
        with self._database.write() as connection:
            _write(connection, owner, {"group_names": json.dumps(named), "seen_at": now})
        self._known = {**self.groups(), owner: named}
        return True

    def forget_known(self) -> None:
        """Read all of them again: another service may have written some."""
        self._known = None


def _write(connection: Connection, owner: str, values: Mapping[str, object]) -> None:
    changed = connection.execute(update(OWNER_GROUPS).where(OWNER_GROUPS.c.owner == owner).values(values))
    if not changed.rowcount:
        connection.execute(insert(OWNER_GROUPS).values(owner=owner, **values))
