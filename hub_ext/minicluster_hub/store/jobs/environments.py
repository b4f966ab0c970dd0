"""Which versions of packages the ranks of each image have, as agents reported them."""

from __future__ import annotations

from sqlalchemy import Connection, delete, insert, select

from minicluster.wire import Versions
from minicluster_hub.store.database import DatabasePart
from minicluster_hub.store.tables.main import ENVIRONMENTS


class EnvironmentQueries(DatabasePart):
    """One transaction per method."""

    def of(self, image: str | None) -> Versions | None:
        """Return the versions in an image (None: the engine's own image); None if no rank ran there yet."""
        query = select(ENVIRONMENTS.c.versions).where(ENVIRONMENTS.c.image == (image or ""))
        with self._database.read() as connection:
            found = connection.execute(query).scalar()
        return Versions.model_validate_json(found) if found else None


def note(connection: Connection, image: str | None, versions: Versions) -> None:
    """Store what an agent reports of its environment."""
    connection.execute(delete(ENVIRONMENTS).where(ENVIRONMENTS.c.image == (image or "")))
    values = {"image": image or "", "versions": versions.model_dump_json()}
    connection.execute(insert(ENVIRONMENTS).values(values))
