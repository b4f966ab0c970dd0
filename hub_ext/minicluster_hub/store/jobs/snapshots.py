"""Which snapshots of a job are in its storage. The bytes are files; see minicluster_hub.storage.blobs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

from sqlalchemy import Connection, Select, delete, insert, select

from minicluster.wire import BlobInfo, Snapshot, SnapshotReport, StorageKind
from minicluster_hub.jobs.records import SnapshotRecord
from minicluster_hub.store.database import DatabasePart
from minicluster_hub.store.jobs.jobs import OPEN_STATES
from minicluster_hub.store.rows import AnyRow
from minicluster_hub.store.storage import storage
from minicluster_hub.store.tables.main import ATTEMPTS, JOBS, SNAPSHOTS

_MOST_PARTS = 1_000
"""Of one job's snapshots, complete or not: an agent keeps a few, and rows count to nobody's quota."""
_IN_ORDER = (SNAPSHOTS.c.job_id, SNAPSHOTS.c.attempt_id, SNAPSHOTS.c.step, SNAPSHOTS.c.part)
_OF_OPEN_JOBS = (
    select(SNAPSHOTS)
    .join(JOBS, JOBS.c.id == SNAPSHOTS.c.job_id)
    .where(JOBS.c.state.in_(OPEN_STATES))
    .order_by(*_IN_ORDER)
)


class SnapshotQueries(DatabasePart):
    """One transaction per method."""

    def listed(self, job_id: int) -> list[Snapshot]:
        """Return a job's complete snapshots as its owner sees them, the newest first."""
        with self._database.read() as connection:
            return listed(connection, job_id)

    def records(self, job_id: int) -> list[SnapshotRecord]:
        """Return a job's complete snapshots, the oldest first."""
        with self._database.read() as connection:
            return of_job(connection, job_id)

    def blobs(self, job_id: int) -> frozenset[str]:
        """Return the SHA-256 of all parts that a job has, complete or not."""
        with self._database.read() as connection:
            return blobs(connection, job_id)

    def prune(self, job_id: int, keep: int) -> frozenset[str]:
        """Delete all but the newest; return the SHA-256 of the files that nobody needs any more."""
        with self._database.write() as connection:
            return prune(connection, job_id, keep)

    def remove(self, job_id: int) -> frozenset[str]:
        """Delete all of a job; return the SHA-256 of the files that nobody needs any more."""
        with self._database.write() as connection:
            surplus = blobs(connection, job_id)
            if surplus:
                connection.execute(delete(SNAPSHOTS).where(SNAPSHOTS.c.job_id == job_id))
                storage.forget_files(connection, job_id, StorageKind.SNAPSHOTS, surplus)
            return surplus


def of_open_jobs(connection: Connection) -> tuple[SnapshotRecord, ...]:
    """Return the complete snapshots of open jobs; for each job, the oldest first."""
    return tuple(_complete(connection.execute(_OF_OPEN_JOBS)))


def of_job(connection: Connection, job_id: int) -> list[SnapshotRecord]:
    """Return a job's complete snapshots, the oldest first."""
    return list(_complete(connection.execute(_rows_of(job_id))))


def listed(connection: Connection, job_id: int) -> list[Snapshot]:
    """Return a job's complete snapshots as its owner sees them, the newest first."""
    query = select(ATTEMPTS.c.id, ATTEMPTS.c.number).where(ATTEMPTS.c.job_id == job_id)
    numbers = {row.id: row.number for row in connection.execute(query)}
    return [
        Snapshot(
            step=record.step,
            attempt=numbers[record.attempt_id],
            size_bytes=sum(part.size_bytes for part in record.parts),
            created_at=record.created_at,
            parts=len(record.parts),
        )
        for record in reversed(of_job(connection, job_id))
    ]


def unknown(
    connection: Connection, job_id: int, attempt_id: int, reports: Sequence[SnapshotReport]
) -> tuple[SnapshotReport, ...]:
    """Return what of a report is not stored yet: reports repeat theirs."""
    mine = [report for report in reports if report.attempt == attempt_id and report.part < report.parts]
    if not mine:
        return ()
    known = {(row.step, row.part, row.attempt_id, row.sha256) for row in connection.execute(_rows_of(job_id))}
    new = [one for one in mine if (one.step, one.part, attempt_id, one.blob.sha256) not in known]
    return tuple(new[: max(0, _MOST_PARTS - len(known))])


def add(
    connection: Connection, job_id: int, attempt_id: int, reports: Iterable[SnapshotReport], now: float
) -> None:
    """Write parts. A part replaces that of an older attempt at the same step."""
    for report in reports:
        same_step = (SNAPSHOTS.c.job_id == job_id, SNAPSHOTS.c.step == report.step)
        stale = (SNAPSHOTS.c.attempt_id != attempt_id) | (SNAPSHOTS.c.part == report.part)
        connection.execute(delete(SNAPSHOTS).where(*same_step, stale))
        values = {
            "job_id": job_id,
            "step": report.step,
            "part": report.part,
            "parts": report.parts,
            "attempt_id": attempt_id,
            "sha256": report.blob.sha256,
            "size_bytes": report.blob.size_bytes,
            "created_at": now,
        }
        connection.execute(insert(SNAPSHOTS).values(values))


def prune(connection: Connection, job_id: int, keep: int) -> frozenset[str]:
    """Delete all that is older than the newest `keep` complete snapshots; return the files left over."""
    before = blobs(connection, job_id)
    kept = of_job(connection, job_id)[-keep:]
    if not kept:
        return frozenset()
    older = (SNAPSHOTS.c.attempt_id < kept[0].attempt_id) | (
        (SNAPSHOTS.c.attempt_id == kept[0].attempt_id) & (SNAPSHOTS.c.step < kept[0].step)
    )
    connection.execute(delete(SNAPSHOTS).where(SNAPSHOTS.c.job_id == job_id, older))
    surplus = before - blobs(connection, job_id)
    storage.forget_files(connection, job_id, StorageKind.SNAPSHOTS, surplus)
    return surplus


def blobs(connection: Connection, job_id: int) -> frozenset[str]:
    """Return the SHA-256 of all parts that a job has, complete or not."""
    return frozenset(row.sha256 for row in connection.execute(_rows_of(job_id)))


def _rows_of(job_id: int) -> Select[tuple[object, ...]]:
    return select(SNAPSHOTS).where(SNAPSHOTS.c.job_id == job_id).order_by(*_IN_ORDER)


def _complete(rows: Iterable[AnyRow]) -> Iterator[SnapshotRecord]:
    """Put the parts of each snapshot together; `rows` are in order."""
    for (job_id, attempt_id, step), group in groupby(
        rows, lambda row: (row.job_id, row.attempt_id, row.step)
    ):
        parts = list(group)
        if len(parts) == parts[0].parts:
            blobs = tuple(BlobInfo(sha256=row.sha256, size_bytes=row.size_bytes) for row in parts)
            yield SnapshotRecord(job_id, step, attempt_id, blobs, max(row.created_at for row in parts))
