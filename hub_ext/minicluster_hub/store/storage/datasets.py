"""Data sets by owner and name, and which pieces their versions stand on. The bytes are files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass

from sqlalchemy import (
    ColumnElement,
    Connection,
    Delete,
    Select,
    delete,
    exists,
    func,
    insert,
    or_,
    select,
    update,
)

from minicluster.wire import BlobInfo
from minicluster_hub.jobs.records import DataSetRecord, DataSetVersion
from minicluster_hub.store.database import DatabasePart
from minicluster_hub.store.jobs.jobs import OPEN_STATES
from minicluster_hub.store.rows import AT_ONCE, AnyRow, portions, to_job
from minicluster_hub.store.tables.main import DATASET_PIECES, DATASET_VERSIONS, DATASETS, JOBS, PIECES

EARLIER_MOST = 20
"""Most versions of a data set that are kept beside the newest."""


@dataclass(frozen=True, slots=True)
class Swept:
    """rows: how many pieces of owners were deleted. gone: those of them that no owner has now."""

    rows: int
    gone: frozenset[str]


class DataSetQueries(DatabasePart):
    """One transaction per method."""

    def visible(self, owner: str | None) -> list[DataSetRecord]:
        """Return a user's own data sets and those that others share; None: all."""
        query = select(DATASETS).order_by(DATASETS.c.owner, DATASETS.c.name)
        if owner is not None:
            query = query.where(or_(DATASETS.c.owner == owner, DATASETS.c.shared))
        with self._database.read() as connection:
            return [_record(row) for row in connection.execute(query)]

    def find(self, owner: str, name: str) -> DataSetRecord | None:
        with self._database.read() as connection:
            return _find(connection, owner, name)

    def count(self, owner: str) -> int:
        """Return how many data sets an owner has."""
        with self._database.read() as connection:
            return connection.execute(select(func.count()).where(DATASETS.c.owner == owner)).scalar_one()

    def keep(self, record: DataSetRecord, pieces: Iterable[str]) -> None:
        """Make this the newest version. pieces: all that it consists of, including its manifest."""
        version = {"owner": record.owner, "manifest_sha256": record.manifest_sha256}
        with self._database.write() as connection:
            known = set(connection.execute(_pieces_of(record.owner, record.manifest_sha256)).scalars())
            new = [{**version, "sha256": sha256} for sha256 in set(pieces) - known]
            if new:
                connection.execute(insert(DATASET_PIECES), new)
            connection.execute(_removal(record.owner, record.name))
            connection.execute(insert(DATASETS).values(asdict(record)))

    def remove(self, owner: str, name: str) -> bool:
        """Forget a data set with all its versions; return whether it was there.

        Jobs that named it keep what they need. What no push asked for since the newest version was made goes
        with the next sweep.
        """
        with self._database.write() as connection:
            found = _find(connection, owner, name)
            if found is None:
                return False
            connection.execute(_removal(owner, name))
            mine = (DATASET_VERSIONS.c.owner == owner, DATASET_VERSIONS.c.name == name)
            earlier = connection.execute(select(DATASET_VERSIONS.c.manifest_sha256).where(*mine)).scalars()
            for manifest in {found.manifest_sha256, *earlier}:
                _let_go(connection, owner, manifest, found.created_at)
            connection.execute(delete(DATASET_VERSIONS).where(*mine))
            return True

    # --- versions -----------------------------------------------------------------------------

    def note_read(self, versions: Collection[DataSetVersion]) -> None:
        """Record that a run reads these versions, so that they stay for a while."""
        with self._database.write() as connection:
            for one in versions:
                connection.execute(delete(DATASET_VERSIONS).where(*_same_version(one)))
                connection.execute(insert(DATASET_VERSIONS).values(asdict(one)))

    def versions(self, owner: str | None = None, name: str | None = None) -> list[DataSetVersion]:
        """Return the versions that runs read, the last read ones first; None: of all owners, of all names."""
        query = select(DATASET_VERSIONS).order_by(DATASET_VERSIONS.c.read_at.desc())
        if owner is not None:
            query = query.where(DATASET_VERSIONS.c.owner == owner)
        if name is not None:
            query = query.where(DATASET_VERSIONS.c.name == name)
        with self._database.read() as connection:
            return [DataSetVersion(**row._mapping) for row in connection.execute(query)]

    def drop_earlier(self, owner: str) -> bool:
        """Forget an owner's versions that are not the newest; return whether there were any.

        Open jobs keep what they named. The rest goes with the next sweep.
        """
        with self._database.read() as connection:
            if not earlier_versions(connection, owner):
                return False
        with self._database.write() as connection:
            _drop(connection, earlier_versions(connection, owner))
        return True

    # --- pieces -------------------------------------------------------------------------------

    def lacking(self, owner: str, pieces: Sequence[BlobInfo], now: float) -> list[BlobInfo]:
        """Return those that the owner never uploaded; the others are kept for some time from now on."""
        known: set[str] = set()
        for some in portions([piece.sha256 for piece in pieces]):
            mine = (PIECES.c.owner == owner, PIECES.c.sha256.in_(some))
            # One by one: there may be very many, and others write in between.
            with self._database.write() as connection:
                known |= set(connection.execute(select(PIECES.c.sha256).where(*mine)).scalars())
                connection.execute(update(PIECES).where(*mine).values(asked_at=now))
        return [piece for piece in pieces if piece.sha256 not in known]

    def add_piece(self, owner: str, piece: BlobInfo, now: float) -> None:
        """Record that the owner uploaded a piece. Repeating it changes nothing."""
        values = {"owner": owner, "sha256": piece.sha256, "size_bytes": piece.size_bytes, "asked_at": now}
        with self._database.write() as connection:
            connection.execute(delete(PIECES).where(PIECES.c.owner == owner, PIECES.c.sha256 == piece.sha256))
            connection.execute(insert(PIECES).values(values))

    def sweep(self, asked_before: float, read_before: float, limit: int = AT_ONCE) -> Swept:
        """Forget pieces that no version has and no push asked for since, at most so many.

        A version stays while it is the newest, a job that is not over named it, or a run has read it since.
        """
        with self._database.write() as connection:
            _sweep_versions(connection, read_before)
            held = select(DATASET_PIECES.c.sha256).where(
                DATASET_PIECES.c.owner == PIECES.c.owner, DATASET_PIECES.c.sha256 == PIECES.c.sha256
            )
            loose = (PIECES.c.asked_at < asked_before, ~held.exists())
            rows = connection.execute(
                select(PIECES.c.owner, PIECES.c.sha256).where(*loose).limit(limit)
            ).all()
            for owner in {row.owner for row in rows}:
                theirs = [row.sha256 for row in rows if row.owner == owner]
                mine = (PIECES.c.owner == owner, PIECES.c.sha256.in_(theirs))
                connection.execute(delete(PIECES).where(*mine))
            gone = {row.sha256 for row in rows}
            return Swept(len(rows), frozenset(gone - _known(connection, gone)))

    def holds(self, manifests: Collection[str], sha256: str) -> bool:
        """Return whether one of these versions contains a piece."""
        named = (DATASET_PIECES.c.manifest_sha256.in_(manifests), DATASET_PIECES.c.sha256 == sha256)
        with self._database.read() as connection:
            return bool(connection.execute(select(exists().where(*named))).scalar())

    # --- jobs ---------------------------------------------------------------------------------

    def ready_for(self, job_id: int, attempt_id: int) -> None:
        """Record that all nodes of an attempt have the job's data sets: from now on its ranks may start."""
        mine = update(JOBS).where(JOBS.c.id == job_id, JOBS.c.attempt_id == attempt_id)
        with self._database.write() as connection:
            connection.execute(mine.values(data_attempt_id=attempt_id))


def _sweep_versions(connection: Connection, read_before: float) -> None:
    """Delete versions that are not the newest, and that no open job and no run since needs."""
    _drop(connection, _surplus(earlier_versions(connection), read_before))
    kept = {
        (row.owner, row.manifest_sha256)
        for table in (DATASETS, DATASET_VERSIONS)
        for row in connection.execute(select(table.c.owner, table.c.manifest_sha256))
    }
    for row in connection.execute(select(JOBS).where(JOBS.c.state.in_(OPEN_STATES))):
        kept |= {(use.owner, use.manifest_sha256) for use in to_job(row).spec.data}
    versions = select(DATASET_PIECES.c.owner, DATASET_PIECES.c.manifest_sha256).distinct()
    for row in connection.execute(versions).all():
        if (row.owner, row.manifest_sha256) not in kept:
            mine = (DATASET_PIECES.c.owner == row.owner, DATASET_PIECES.c.manifest_sha256 == row[1])
            connection.execute(delete(DATASET_PIECES).where(*mine))


def earlier_versions(connection: Connection, owner: str | None = None) -> list[DataSetVersion]:
    """Return the versions that are not the newest of their name, the last read ones first."""
    newest = exists().where(
        DATASETS.c.owner == DATASET_VERSIONS.c.owner,
        DATASETS.c.name == DATASET_VERSIONS.c.name,
        DATASETS.c.manifest_sha256 == DATASET_VERSIONS.c.manifest_sha256,
    )
    query = select(DATASET_VERSIONS).where(~newest).order_by(DATASET_VERSIONS.c.read_at.desc())
    if owner is not None:
        query = query.where(DATASET_VERSIONS.c.owner == owner)
    return [DataSetVersion(**row._mapping) for row in connection.execute(query)]


def _surplus(earlier: Iterable[DataSetVersion], read_before: float) -> Iterator[DataSetVersion]:
    """Yield versions that were read too long ago, or that are too many of one name."""
    of_name = Counter[tuple[str, str]]()
    for one in earlier:
        of_name[one.owner, one.name] += 1
        if one.read_at < read_before or of_name[one.owner, one.name] > EARLIER_MOST:
            yield one


def _drop(connection: Connection, versions: Iterable[DataSetVersion]) -> None:
    """Forget that these versions were read."""
    for one in versions:
        connection.execute(delete(DATASET_VERSIONS).where(*_same_version(one)))
        _let_go(connection, one.owner, one.manifest_sha256, one.read_at)


def _let_go(connection: Connection, owner: str, manifest_sha256: str, asked_before: float) -> None:
    """Have the next sweep remove a version's pieces, but for those that a push asked for since."""
    quiet = (PIECES.c.owner == owner, PIECES.c.asked_at <= asked_before)
    pieces = PIECES.c.sha256.in_(_pieces_of(owner, manifest_sha256))
    connection.execute(update(PIECES).where(*quiet, pieces).values(asked_at=0.0))


def _same_version(one: DataSetVersion) -> tuple[ColumnElement[bool], ...]:
    return (
        DATASET_VERSIONS.c.owner == one.owner,
        DATASET_VERSIONS.c.name == one.name,
        DATASET_VERSIONS.c.manifest_sha256 == one.manifest_sha256,
    )


def _known(connection: Connection, pieces: Collection[str]) -> set[str]:
    """Return those of these pieces that some owner has."""
    found: set[str] = set()
    for some in portions(pieces):
        found |= set(connection.execute(select(PIECES.c.sha256).where(PIECES.c.sha256.in_(some))).scalars())
    return found


def _pieces_of(owner: str, manifest_sha256: str) -> Select[tuple[str]]:
    return select(DATASET_PIECES.c.sha256).where(
        DATASET_PIECES.c.owner == owner, DATASET_PIECES.c.manifest_sha256 == manifest_sha256
    )


def _removal(owner: str, name: str) -> Delete:
    return delete(DATASETS).where(DATASETS.c.owner == owner, DATASETS.c.name == name)


def _find(connection: Connection, owner: str, name: str) -> DataSetRecord | None:
    query = select(DATASETS).where(DATASETS.c.owner == owner, DATASETS.c.name == name)
    row = connection.execute(query).one_or_none()
    return None if row is None else _record(row)


def _record(row: AnyRow) -> DataSetRecord:
    return DataSetRecord(**row._mapping)
