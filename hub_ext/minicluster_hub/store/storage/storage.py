"""How much each owner has on the disk, summed up from the rows of what is there: right after a crash, too.

Each sum of one owner goes through an index by owner; a test holds that others' rows cost nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Select,
    and_,
    bindparam,
    delete,
    exists,
    func,
    insert,
    literal,
    select,
    union_all,
)

from minicluster.wire import FILE_BYTES, BlobInfo, ImageState, StorageKind, StorageUse, StoredThing
from minicluster_hub.store.database import DatabasePart
from minicluster_hub.store.rows import portions
from minicluster_hub.store.storage import stored_things
from minicluster_hub.store.tables.blobs import BLOBS
from minicluster_hub.store.tables.main import DATASETS, IMAGES, JOBS, PIECES
from minicluster_hub.store.tables.storage import COMPILE_CACHES, JOB_FILES, cost

Uses = dict[StorageKind, StorageUse]
_NOTHING = ""
_OUTPUT_BYTES = select(JOB_FILES.c.size_bytes).where(
    JOB_FILES.c.job_id == bindparam("job_id"), JOB_FILES.c.kind == StorageKind.OUTPUT
)


class StorageQueries(DatabasePart):
    """One transaction per method."""

    def used(self, owner: str) -> Uses:
        """Return what an owner has, by kind."""
        with self._database.read() as connection:
            return sums(connection, owner).get(owner, {})

    def used_by_all(self) -> dict[str, Uses]:
        """Return what each owner with stored files has."""
        with self._database.read() as connection:
            return sums(connection)

    def largest(self, owner: str | None, limit: int) -> list[StoredThing]:
        """Return the largest things of an owner, or of everyone."""
        with self._database.read() as connection:
            return stored_things.largest(connection, owner, limit)

    def remove_job(self, job_id: int, by: str, now: float) -> list[str]:
        """Delete what is stored of a job that is over; return the blobs that its owner no longer has."""
        with self._database.write() as connection:
            return stored_things.remove_job(connection, job_id, by, now)

    # --- files that one job alone has -----------------------------------------------------------

    def add(self, owner: str, job_id: int, kind: StorageKind, files: Iterable[BlobInfo]) -> None:
        """Record that these files are on the disk. Repeating it changes nothing."""
        new = {file.sha256: file.size_bytes for file in files}
        common = {"job_id": job_id, "kind": kind, "owner": owner}
        with self._database.write() as connection:
            forget_files(connection, job_id, kind, list(new))
            rows = [{**common, "sha256": sha256, "size_bytes": size} for sha256, size in new.items()]
            connection.execute(insert(JOB_FILES), rows)

    def remove(self, job_id: int, kind: StorageKind, files: Collection[str]) -> None:
        """Delete the rows of these files, which may be deleted from now on."""
        with self._database.write() as connection:
            forget_files(connection, job_id, kind, files)

    def has(self, job_id: int, kind: StorageKind, sha256: str) -> bool:
        same = (JOB_FILES.c.job_id == job_id, JOB_FILES.c.kind == kind, JOB_FILES.c.sha256 == sha256)
        with self._database.read() as connection:
            return connection.execute(select(JOB_FILES.c.job_id).where(*same)).first() is not None

    def output_bytes(self, job_id: int) -> int:
        """Return the size for which a job's output was last counted in the quota."""
        with self._database.read() as connection:
            return connection.execute(_OUTPUT_BYTES, {"job_id": job_id}).scalar() or 0

    def set_output(self, owner: str, job_id: int, size_bytes: int) -> None:
        """Set the size for which a job's output counts in the quota from now on."""
        self.add(
            owner,
            job_id,
            StorageKind.OUTPUT,
            [BlobInfo.model_construct(sha256=_NOTHING, size_bytes=size_bytes)],
        )

    def uncounted_outputs(self, job_ids: Sequence[int]) -> dict[int, str]:
        """Return those of these jobs whose output was never counted, with their owners."""
        found: dict[int, str] = {}
        counted = exists().where(JOB_FILES.c.job_id == JOBS.c.id, JOB_FILES.c.kind == StorageKind.OUTPUT)
        query = select(JOBS.c.id, JOBS.c.owner).where(JOBS.c.removed_at.is_(None), ~counted)
        with self._database.read() as connection:
            for some in portions(job_ids):
                rows = connection.execute(query.where(JOBS.c.id.in_(some)))
                found |= {row.id: row.owner for row in rows}
        return found


def forget(connection: Connection, job_ids: Collection[int], *kinds: StorageKind) -> None:
    """Stop counting what jobs have of these kinds."""
    mine = (JOB_FILES.c.job_id.in_(job_ids), JOB_FILES.c.kind.in_(kinds))
    connection.execute(delete(JOB_FILES).where(*mine))


def sums(connection: Connection, owner: str | None = None) -> dict[str, Uses]:
    """Return what an owner has, or everyone, by kind."""
    found: dict[str, Uses] = {}
    for row in connection.execute(union_all(*sums_queries(owner))):
        uses = found.setdefault(row.owner, {})
        kind, before = StorageKind(row.kind), uses.get(StorageKind(row.kind))
        size, files = int(row.size_bytes), int(row.files)
        if before is not None:
            size, files = size + before.size_bytes, files + before.files
        if size:
            uses[kind] = StorageUse(kind=kind, size_bytes=size, files=files)
    return found


def sums_queries(owner: str | None) -> Iterator[Select[Any]]:
    """Yield one query for each table that has something on the disk: owner, kind, bytes, files."""
    cells, data, images, compiled = (
        literal(kind.value)
        for kind in (StorageKind.CELLS, StorageKind.DATA, StorageKind.IMAGES, StorageKind.COMPILED)
    )
    job_files = _sum(JOB_FILES.c.owner, JOB_FILES.c.kind, cost(JOB_FILES.c.size_bytes), owner)
    yield job_files.group_by(JOB_FILES.c.kind)
    yield _sum(BLOBS.c.owner, cells, cost(BLOBS.c.size_bytes), owner)
    yield _sum(PIECES.c.owner, data, cost(PIECES.c.size_bytes), owner)
    yield _sum(COMPILE_CACHES.c.owner, compiled, cost(COMPILE_CACHES.c.size_bytes), owner)
    # The files of a data set are none here, but each takes an entry and a block in the nodes' caches.
    entries = DATASETS.c.files * FILE_BYTES - DATASETS.c.size_bytes
    yield _sum(DATASETS.c.owner, data, cost(entries), owner, literal(0))
    of_users = and_(IMAGES.c.owner != "", IMAGES.c.state != ImageState.RETIRED)
    yield _sum(IMAGES.c.owner, images, cost(IMAGES.c.layer_bytes), owner).where(of_users)


def _sum(
    owner_column: ColumnElement[str],
    kind: ColumnElement[str],
    size: ColumnElement[int],
    owner: str | None,
    files: ColumnElement[int] | None = None,
) -> Select[Any]:
    counted = func.count() if files is None else files
    query: Any = select(
        owner_column.label("owner"),
        kind.label("kind"),
        func.sum(size).label("size_bytes"),
        counted.label("files"),
    ).group_by(owner_column)
    return query if owner is None else query.where(owner_column == owner)


def forget_files(connection: Connection, job_id: int, kind: StorageKind, files: Collection[str]) -> None:
    """Stop counting these files of a job."""
    same = (JOB_FILES.c.job_id == job_id, JOB_FILES.c.kind == kind)
    for some in portions(files):
        connection.execute(delete(JOB_FILES).where(*same, JOB_FILES.c.sha256.in_(some)))
