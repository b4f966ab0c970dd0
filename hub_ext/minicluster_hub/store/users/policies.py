"""The chosen policies, one after the other: the newest that was not taken back is active."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import select, update

from minicluster.wire import ActivePolicy, PolicyChoice
from minicluster_hub.store.database import DatabasePart
from minicluster_hub.store.rows import AnyRow, add_row, clean
from minicluster_hub.store.tables.scheduling import POLICIES

_NEWEST = select(POLICIES).order_by(POLICIES.c.id.desc()).limit(1)
_STANDING = select(POLICIES).where(POLICIES.c.ended == "").order_by(POLICIES.c.id.desc()).limit(100)
_ACTIVE = _NEWEST.where(POLICIES.c.ended == "")


@dataclass(frozen=True, slots=True)
class StoredPolicy:
    """A chosen policy. id: of its row; None: it comes from the cluster's settings."""

    id: int | None
    policy: ActivePolicy


class PolicyQueries(DatabasePart):
    """One transaction per method."""

    def active(self) -> StoredPolicy | None:
        """Return what an admin chose last, None if nobody ever did or all choices were withdrawn."""
        with self._database.read() as connection:
            row = connection.execute(_ACTIVE).one_or_none()
        return None if row is None else _chosen(row)

    def standing(self) -> list[StoredPolicy]:
        """Return the choices that were not withdrawn, the newest first."""
        with self._database.read() as connection:
            return [_chosen(row) for row in connection.execute(_STANDING)]

    def trouble(self) -> str:
        """Return why the last choice was withdrawn, "" if it was not."""
        with self._database.read() as connection:
            row = connection.execute(_NEWEST).one_or_none()
        return "" if row is None else row.ended

    def choose(self, choice: PolicyChoice, by: str, now: float) -> StoredPolicy:
        """Activate a choice."""
        policy = ActivePolicy(choice=choice, by=clean(by), since=now)
        values = {"choice": choice.model_dump_json(), "chosen_by": policy.by, "since": now, "ended": ""}
        with self._database.write() as connection:
            return StoredPolicy(add_row(connection, POLICIES, values), policy)

    def take_back(self, chosen_id: int, why: str) -> None:
        """End a choice: the newest of the others becomes active again."""
        ended = update(POLICIES).where(POLICIES.c.id == chosen_id, POLICIES.c.ended == "")
        with self._database.write() as connection:
            connection.execute(ended.values(ended=clean(why) or "taken back"))


def _chosen(row: AnyRow) -> StoredPolicy:
    choice = PolicyChoice.model_validate_json(row.choice)
    return StoredPolicy(row.id, ActivePolicy(choice=choice, by=row.chosen_by, since=row.since))
