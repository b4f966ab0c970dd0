"""Which files jobs left in their output folders. minicluster_hub.storage.blobs stores the bytes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sqlalchemy import Connection, delete, exists, func, insert, select, tuple_

from minicluster.wire import FILE_BYTES, LEFT, Artifact, ArtifactReport, StorageKind
from minicluster_hub.store.database import DatabasePart
from minicluster_hub.store.rows import AnyRow
from minicluster_hub.store.storage import storage
from minicluster_hub.store.tables.main import ARTIFACTS, EVENTS, JOBS
from minicluster_hub.store.tables.storage import JOB_FILES


class ArtifactQueries(DatabasePart):
    """One transaction per method."""

    def listed(self, job_id: int, limit: int, after: tuple[int, str] = (-1, "")) -> list[Artifact]:
        """Return at most `limit` of a job's files by task and path, in the primary key's order.

        after: task and path of the last one that was seen. Databases differ in the order of text.
        """
        place = tuple_(ARTIFACTS.c.part, ARTIFACTS.c.path)
        later = (ARTIFACTS.c.job_id == job_id, place > tuple_(*after))
        query = select(ARTIFACTS).where(*later).order_by(ARTIFACTS.c.part, ARTIFACTS.c.path).limit(limit)
        with self._database.read() as connection:
            return [_artifact(row) for row in connection.execute(query)]

    def fitting(
        self, job_id: int, reports: Sequence[ArtifactReport], most: int
    ) -> tuple[ArtifactReport, ...]:
        """Return those of these files that fit into a job's limit of `most` files; known files always fit."""
        here = ARTIFACTS.c.job_id == job_id
        with self._database.read() as connection:
            left = most - connection.execute(select(func.count()).where(here)).scalar_one()
            if len(reports) <= left:
                return tuple(reports)
            places = select(ARTIFACTS.c.path, ARTIFACTS.c.part).where(here)
            known = {(row.path, row.part) for row in connection.execute(places)}
        new = {(one.path, one.part): None for one in reports if (one.path, one.part) not in known}
        taken = {*known, *list(new)[: max(0, left)]}
        return tuple(one for one in reports if (one.path, one.part) in taken)

    def find(self, job_id: int, path: str, part: int | None = None) -> Artifact | None:
        """Return a job's file: of this task, or of the first task that has it."""
        query = select(ARTIFACTS).where(ARTIFACTS.c.job_id == job_id, ARTIFACTS.c.path == path)
        if part is not None:
            query = query.where(ARTIFACTS.c.part == part)
        with self._database.read() as connection:
            row = connection.execute(query.order_by(ARTIFACTS.c.part).limit(1)).one_or_none()
        return None if row is None else _artifact(row)

    def left(self, job_id: int) -> tuple[str, ...]:
        """Return the notes on files of a job's output folders that were not uploaded."""
        query = select(EVENTS.c.text).where(EVENTS.c.job_id == job_id, EVENTS.c.kind == "note")
        with self._database.read() as connection:
            notes = connection.execute(query.order_by(EVENTS.c.id)).scalars()
            return tuple(note for note in notes if note.startswith(LEFT))

    def blobs(self, job_id: int) -> frozenset[str]:
        """Return the SHA-256 of all files of a job."""
        query = select(ARTIFACTS.c.sha256).where(ARTIFACTS.c.job_id == job_id).distinct()
        with self._database.read() as connection:
            return frozenset(connection.execute(query).scalars())

    def ended_before(self, at: float, limit: int) -> list[int]:
        """Return at most `limit` jobs that ended before a time and still have files."""
        has_files = exists().where(ARTIFACTS.c.job_id == JOBS.c.id)
        query = select(JOBS.c.id).where(JOBS.c.ended_at < at, has_files).order_by(JOBS.c.id).limit(limit)
        with self._database.read() as connection:
            return list(connection.execute(query).scalars())

    def forget(self, job_id: int) -> None:
        with self._database.write() as connection:
            connection.execute(delete(ARTIFACTS).where(ARTIFACTS.c.job_id == job_id))
            storage.forget(connection, (job_id,), StorageKind.FILES)


def unknown(
    connection: Connection, job_id: int, reports: Sequence[ArtifactReport]
) -> tuple[ArtifactReport, ...]:
    """Return what of a report is not stored yet: a report may come twice."""
    if not reports:
        return ()
    paths = [report.path for report in reports]
    query = select(ARTIFACTS).where(ARTIFACTS.c.job_id == job_id, ARTIFACTS.c.path.in_(paths))
    known = {(row.path, row.part, row.sha256) for row in connection.execute(query)}
    return tuple(one for one in reports if (one.path, one.part, one.blob.sha256) not in known)


def add(connection: Connection, job_id: int, reports: Iterable[ArtifactReport], now: float) -> None:
    """Write files. A file replaces the one that an earlier attempt left under its path."""
    common = {"job_id": job_id, "created_at": now}
    rows = {
        (one.part, one.path): {**common, "part": one.part, "path": one.path, **one.blob.model_dump()}
        for one in reports
    }
    if not rows:
        return
    for part in {part for part, _ in rows}:
        paths = [path for its, path in rows if its == part]
        same = (ARTIFACTS.c.job_id == job_id, ARTIFACTS.c.part == part, ARTIFACTS.c.path.in_(paths))
        connection.execute(delete(ARTIFACTS).where(*same))
    connection.execute(insert(ARTIFACTS), list(rows.values()))
    _count_names(connection, job_id)


def _count_names(connection: Connection, job_id: int) -> None:
    """Count, as files of the job's owner, the paths of a job that share a file with another path."""
    of_job = (JOB_FILES.c.job_id == job_id, JOB_FILES.c.kind == StorageKind.FILES)
    files = select(func.count()).where(*of_job, JOB_FILES.c.sha256 != "")
    names = select(func.count()).where(ARTIFACTS.c.job_id == job_id)
    more = connection.execute(names).scalar_one() - connection.execute(files).scalar_one()
    connection.execute(delete(JOB_FILES).where(*of_job, JOB_FILES.c.sha256 == ""))
    if more > 0:
        owner = connection.execute(select(JOBS.c.owner).where(JOBS.c.id == job_id)).scalar_one()
        row = {"job_id": job_id, "kind": StorageKind.FILES, "sha256": "", "owner": owner}
        connection.execute(insert(JOB_FILES).values(**row, size_bytes=more * FILE_BYTES))


def _artifact(row: AnyRow) -> Artifact:
    return Artifact.model_validate(row, from_attributes=True)
