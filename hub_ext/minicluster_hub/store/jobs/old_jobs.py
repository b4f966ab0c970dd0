"""Jobs that ended long ago: removes their large parts, and the rows of the oldest; see job_rows."""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import delete, exists, select, update

from minicluster.wire import JobSpec, StorageKind
from minicluster_hub.store.database import DatabasePart
from minicluster_hub.store.jobs import job_rows
from minicluster_hub.store.jobs.jobs import add_event
from minicluster_hub.store.storage import blobs, storage
from minicluster_hub.store.tables.blobs import JOB_BLOBS
from minicluster_hub.store.tables.main import JOBS, SNAPSHOTS

_REMOVED = "its cell, its result, its snapshots and its output were removed"


class OldJobQueries(DatabasePart):
    """One transaction per method."""

    def ended_before(self, at: float, limit: int) -> list[int]:
        """Return the jobs that ended before a time and were not forgotten yet, at most so many."""
        old = (JOBS.c.ended_at < at, JOBS.c.removed_at.is_(None))
        with self._database.read() as connection:
            query = select(JOBS.c.id).where(*old).order_by(JOBS.c.id).limit(limit)
            return list(connection.execute(query).scalars())

    def forget(self, job_ids: Collection[int], now: float) -> None:
        """Delete the rows of jobs' blobs and snapshots; their files may be deleted from now on."""
        with self._database.write() as connection:
            for table in (JOB_BLOBS, SNAPSHOTS):
                connection.execute(delete(table).where(table.c.job_id.in_(job_ids)))
            storage.forget(connection, job_ids, StorageKind.CELLS, StorageKind.SNAPSHOTS, StorageKind.OUTPUT)
            job_rows.shrink(connection, job_ids)
            connection.execute(update(JOBS).where(JOBS.c.id.in_(job_ids)).values(removed_at=now))
            for job_id in job_ids:
                add_event(connection, job_id, "removed", _REMOVED, now)
            owners = select(JOBS.c.owner).where(JOBS.c.id.in_(job_ids)).distinct()
            for owner in list(connection.execute(owners).scalars()):
                job_rows.drop_oldest(connection, owner)

    def name_blobs(self, limit: int) -> int:
        """Store which blobs jobs of an earlier release use, for at most `limit` jobs; return how many."""
        unnamed = (JOBS.c.removed_at.is_(None), ~exists().where(JOB_BLOBS.c.job_id == JOBS.c.id))
        with self._database.write() as connection:
            rows = connection.execute(select(JOBS.c.id, JOBS.c.spec).where(*unnamed).limit(limit)).all()
            for row in rows:
                spec = JobSpec.model_validate_json(row.spec)
                blobs.reference(connection, row.id, spec.blobs)
        return len(rows)

    def forgotten(self, job_ids: Collection[int]) -> list[int]:
        """Return those of these jobs that were removed. They must fit into one statement."""
        query = select(JOBS.c.id).where(JOBS.c.id.in_(job_ids), JOBS.c.removed_at.is_not(None))
        with self._database.read() as connection:
            return list(connection.execute(query).scalars())
