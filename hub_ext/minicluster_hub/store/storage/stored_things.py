"""What is largest of what users keep, and what goes when one of these things is removed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Select,
    delete,
    desc,
    func,
    literal,
    select,
    union_all,
    update,
)

from minicluster.wire import FILE_BYTES, JobSpec, StorageKind, StorageUse, StoredThing
from minicluster_hub.store.jobs import job_rows
from minicluster_hub.store.jobs.jobs import OPEN_STATES, add_event
from minicluster_hub.store.rows import clean, portions
from minicluster_hub.store.storage.datasets import earlier_versions
from minicluster_hub.store.tables.blobs import BLOBS, JOB_BLOBS
from minicluster_hub.store.tables.main import (
    ARTIFACTS,
    ATTEMPTS,
    DATASET_PIECES,
    DATASETS,
    JOBS,
    PIECES,
    SNAPSHOTS,
)
from minicluster_hub.store.tables.storage import JOB_FILES, cost

_KEPT = (JOB_BLOBS, SNAPSHOTS, ARTIFACTS, JOB_FILES)


def largest(connection: Connection, owner: str | None, limit: int) -> list[StoredThing]:
    """Return the largest things of an owner, or of everyone."""
    found = [*_jobs(connection, owner, limit), *_data_sets(connection, owner, limit)]
    return sorted(found, key=lambda thing: -thing.size_bytes)[:limit]


def remove_job(connection: Connection, job_id: int, by: str, now: float) -> list[str]:
    """Forget what a job that is over keeps; return the blobs that its owner has no more.

    A blob that another job of the owner names stays.
    """
    owner = connection.execute(select(JOBS.c.owner).where(JOBS.c.id == job_id)).scalar_one()
    gone = sorted(_blobs_of(connection, job_id) - _blobs_of_others(connection, job_id, owner))
    for table in _KEPT:
        connection.execute(delete(table).where(table.c.job_id == job_id))
    for some in portions(gone):
        connection.execute(delete(BLOBS).where(BLOBS.c.owner == owner, BLOBS.c.sha256.in_(some)))
    connection.execute(update(JOBS).where(JOBS.c.id == job_id).values(removed_at=now))
    job_rows.shrink(connection, (job_id,))
    text = f"its cell, its result, its snapshots, its files and its output were removed by {clean(by)}"
    add_event(connection, job_id, "removed", text, now)
    job_rows.drop_oldest(connection, owner)
    return gone


def _jobs(connection: Connection, owner: str | None, limit: int) -> Iterator[StoredThing]:
    kept = union_all(*_kept_by_jobs(owner)).subquery()
    total, files = func.sum(kept.c.size_bytes), func.sum(kept.c.files)
    largest = select(kept.c.job_id).group_by(kept.c.job_id).order_by(desc(total)).limit(limit)
    ids = list(connection.execute(largest).scalars())
    uses: dict[int, list[StorageUse]] = {}
    by_kind = select(kept.c.job_id, kept.c.kind, total.label("size_bytes"), files.label("files"))
    mine = by_kind.where(kept.c.job_id.in_(ids)).group_by(kept.c.job_id, kept.c.kind)
    for row in connection.execute(mine.order_by(kept.c.kind)):
        use = StorageUse(kind=StorageKind(row.kind), size_bytes=int(row.size_bytes), files=int(row.files))
        uses.setdefault(row.job_id, []).append(use)
    columns = (JOBS.c.id, JOBS.c.owner, JOBS.c.spec, JOBS.c.state, JOBS.c.created_at)
    for row in connection.execute(select(*columns).where(JOBS.c.id.in_(ids))):
        yield StoredThing(
            owner=row.owner,
            name=JobSpec.model_validate_json(row.spec).name,
            size_bytes=sum(use.size_bytes for use in uses[row.id]),
            job_id=row.id,
            open=row.state in OPEN_STATES,
            created_at=row.created_at,
            uses=tuple(uses[row.id]),
        )


def _kept_by_jobs(owner: str | None) -> Iterator[Select[Any]]:
    """Yield queries of job, kind, bytes, files. Results are blobs of their own."""
    cells = literal(StorageKind.CELLS.value)
    yield _grouped(JOB_FILES.c.job_id, JOB_FILES.c.kind, JOB_FILES.c.size_bytes, JOB_FILES.c.owner, owner)
    named = _grouped(JOB_BLOBS.c.job_id, cells, BLOBS.c.size_bytes, JOBS.c.owner, owner)
    theirs = (BLOBS.c.owner == JOBS.c.owner) & (BLOBS.c.sha256 == JOB_BLOBS.c.sha256)
    yield named.select_from(JOBS).join(JOB_BLOBS, JOB_BLOBS.c.job_id == JOBS.c.id).join(BLOBS, theirs)
    results = _grouped(ATTEMPTS.c.job_id, cells, ATTEMPTS.c.result_size_bytes, JOBS.c.owner, owner)
    there = (ATTEMPTS.c.result_sha256.is_not(None), JOBS.c.removed_at.is_(None))
    yield results.select_from(JOBS).join(ATTEMPTS, ATTEMPTS.c.job_id == JOBS.c.id).where(*there)


def _grouped(
    job_id: ColumnElement[int],
    kind: ColumnElement[str],
    size: ColumnElement[Any],
    owner_column: ColumnElement[str],
    owner: str | None,
) -> Select[Any]:
    columns: tuple[Any, ...] = (
        job_id.label("job_id"),
        kind.label("kind"),
        func.sum(cost(size)).label("size_bytes"),
        func.count().label("files"),
    )
    query: Any = select(*columns).group_by(job_id, kind)
    return query if owner is None else query.where(owner_column == owner)


def _data_sets(connection: Connection, owner: str | None, limit: int) -> Iterator[StoredThing]:
    earlier: dict[tuple[str, str], list[str]] = {}
    for one in earlier_versions(connection, owner):
        earlier.setdefault((one.owner, one.name), []).append(one.manifest_sha256)
    query = select(DATASETS).order_by(desc(DATASETS.c.size_bytes)).limit(limit)
    for row in connection.execute(query if owner is None else query.where(DATASETS.c.owner == owner)):
        size = max(row.size_bytes, row.files * FILE_BYTES)
        versions = earlier.get((row.owner, row.name), [])
        earlier_bytes = _only_in(connection, row.owner, versions, row.manifest_sha256) if versions else 0
        yield StoredThing(
            owner=row.owner,
            name=row.name,
            size_bytes=size + earlier_bytes,
            created_at=row.created_at,
            uses=(StorageUse(kind=StorageKind.DATA, size_bytes=size, files=row.files),),
            earlier_versions=len(versions),
            earlier_bytes=earlier_bytes,
        )


def _only_in(connection: Connection, owner: str, versions: Sequence[str], newest: str) -> int:
    """Return for how many bytes those pieces count that only these versions have, and not the newest."""
    pieces = select(DATASET_PIECES.c.sha256).where(DATASET_PIECES.c.owner == owner)
    version = DATASET_PIECES.c.manifest_sha256
    sizes = select(func.sum(cost(PIECES.c.size_bytes))).where(
        PIECES.c.owner == owner,
        PIECES.c.sha256.in_(pieces.where(version.in_(versions))),
        PIECES.c.sha256.not_in(pieces.where(version == newest)),
    )
    return int(connection.execute(sizes).scalar() or 0)


def _blobs_of(connection: Connection, job_id: int) -> set[str]:
    """Return what a job took along and brought back."""
    named = select(JOB_BLOBS.c.sha256).where(JOB_BLOBS.c.job_id == job_id)
    results = select(ATTEMPTS.c.result_sha256).where(ATTEMPTS.c.job_id == job_id)
    found = {*connection.execute(named).scalars(), *connection.execute(results).scalars()}
    return {sha256 for sha256 in found if sha256}


def _blobs_of_others(connection: Connection, job_id: int, owner: str) -> set[str]:
    """Return the blobs of the owner's other jobs."""
    theirs = (JOBS.c.owner == owner, JOBS.c.id != job_id, JOBS.c.removed_at.is_(None))
    named = select(JOB_BLOBS.c.sha256).join(JOBS, JOBS.c.id == JOB_BLOBS.c.job_id).where(*theirs)
    results = select(ATTEMPTS.c.result_sha256).join(JOBS, JOBS.c.id == ATTEMPTS.c.job_id).where(*theirs)
    return {*connection.execute(named).scalars(), *connection.execute(results).scalars()}
