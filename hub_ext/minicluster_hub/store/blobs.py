"""Which owner has which blob. The bytes are files; see minicluster_hub.blobs."""

from __future__ import annotations

from contextlib import suppress

from sqlalchemy import insert, select
from sqlalchemy.exc import IntegrityError

from minicluster_hub.store.database import Database
from minicluster_hub.store.tables import BLOBS


class OwnedBlobs:
    """What the service asks of them: one transaction per method."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def add(self, owner: str, sha256: str, size_bytes: int, now: float) -> None:
        """Keep that the owner has this blob. Again is no change."""
        if self.has(owner, sha256):
            return
        values = {"owner": owner, "sha256": sha256, "size_bytes": size_bytes, "created_at": now}
        # The same blob may come twice at once.
        with suppress(IntegrityError), self._database.write() as connection:
            connection.execute(insert(BLOBS).values(values))

    def has(self, owner: str, sha256: str) -> bool:
        return self.size(owner, sha256) is not None

    def size(self, owner: str, sha256: str) -> int | None:
        """Return the size in bytes of an owner's blob, None if the owner has no such blob."""
        query = select(BLOBS.c.size_bytes).where(BLOBS.c.owner == owner, BLOBS.c.sha256 == sha256)
        with self._database.read() as connection:
            return connection.execute(query).scalar_one_or_none()
