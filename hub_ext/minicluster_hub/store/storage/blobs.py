"""Which owner has which blob, and which jobs need it. minicluster_hub.storage.blobs stores the bytes."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress

from sqlalchemy import Connection, Select, delete, exists, insert, select, update
from sqlalchemy.exc import IntegrityError

from minicluster_hub.store.database import DatabasePart
from minicluster_hub.store.rows import portions
from minicluster_hub.store.tables.blobs import BLOBS, JOB_BLOBS
from minicluster_hub.store.tables.main import ATTEMPTS, JOBS

_RESULTS = (
    select(ATTEMPTS.c.result_sha256)
    .join(JOBS, JOBS.c.id == ATTEMPTS.c.job_id)
    .where(ATTEMPTS.c.result_sha256.is_not(None), JOBS.c.removed_at.is_(None))
)


class BlobQueries(DatabasePart):
    """One transaction per method."""

    def add(self, owner: str, sha256: str, size_bytes: int, now: float) -> None:
        """Record that the owner has this blob. Repeated, it is only kept for some time from now on."""
        if self.renew(owner, sha256, now):
            return
        values = {"owner": owner, "sha256": sha256, "size_bytes": size_bytes}
        # The same blob may come twice at once.
        with suppress(IntegrityError), self._database.write() as connection:
            connection.execute(insert(BLOBS).values(**values, created_at=now, asked_at=now))

    def renew(self, owner: str, sha256: str, now: float) -> bool:
        """Keep a blob for some time from now on; return whether the owner has it."""
        mine = update(BLOBS).where(BLOBS.c.owner == owner, BLOBS.c.sha256 == sha256)
        with self._database.write() as connection:
            return connection.execute(mine.values(asked_at=now)).rowcount > 0

    def lacks(self, owner: str, blobs: Collection[str]) -> frozenset[str]:
        """Return those of these blobs that are not the owner's."""
        with self._database.read() as connection:
            found = (connection.execute(_of(owner, some)).scalars() for some in portions(blobs))
            return frozenset(blobs).difference(*found)

    def renew_all(self, owner: str, blobs: Collection[str], now: float) -> frozenset[str]:
        """Keep those of these blobs that the owner has for some time from now on; return the others."""
        with self._database.write() as connection:
            for some in portions(blobs):
                mine = update(BLOBS).where(BLOBS.c.owner == owner, BLOBS.c.sha256.in_(some))
                connection.execute(mine.values(asked_at=now))
        return self.lacks(owner, blobs)

    def size(self, owner: str, sha256: str) -> int | None:
        """Return the size in bytes of an owner's blob, None if the owner has no such blob."""
        query = select(BLOBS.c.size_bytes).where(BLOBS.c.owner == owner, BLOBS.c.sha256 == sha256)
        with self._database.read() as connection:
            return connection.execute(query).scalar_one_or_none()

    def drop_loose(self, before: float) -> int:
        """Delete the rows of blobs that no job needs and nobody has asked for since then; return how many."""
        old = (BLOBS.c.created_at < before, BLOBS.c.asked_at < before)
        named = exists().where(JOB_BLOBS.c.sha256 == BLOBS.c.sha256)
        with self._database.write() as connection:
            loose = delete(BLOBS).where(*old, ~named, BLOBS.c.sha256.not_in(_RESULTS))
            return connection.execute(loose).rowcount

    def unknown(self, blobs: Collection[str]) -> frozenset[str]:
        """Return those of these blobs that nobody has. They must fit into one statement."""
        query = select(BLOBS.c.sha256).where(BLOBS.c.sha256.in_(blobs))
        with self._database.read() as connection:
            return frozenset(blobs) - set(connection.execute(query).scalars())


def _of(owner: str, blobs: Collection[str]) -> Select[tuple[str]]:
    return select(BLOBS.c.sha256).where(BLOBS.c.owner == owner, BLOBS.c.sha256.in_(blobs))


def reference(connection: Connection, job_id: int, blobs: frozenset[str]) -> None:
    """Note that a job needs these blobs, so that they are kept as long as the job."""
    named = [{"job_id": job_id, "sha256": sha256} for sha256 in blobs]
    connection.execute(insert(JOB_BLOBS), named)
