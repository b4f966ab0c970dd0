"""Which pieces of compile caches there are. minicluster_hub.storage.compile_caches stores the bytes."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple

from sqlalchemy import ColumnElement, Connection, delete, func, insert, select, update

from minicluster.wire import BlobInfo
from minicluster_hub.store.database import DatabasePart
from minicluster_hub.store.rows import portions
from minicluster_hub.store.tables.storage import COMPILE_CACHES as PIECES


class CacheKey(NamedTuple):
    """Compiled code of one key is never given to tasks of another one.

    image: by digest; "": the engine's environment. environment: see wire.files.compile_caches.
    """

    owner: str
    image: str
    environment: str


class CompileCacheQueries(DatabasePart):
    """One transaction per method. What removes pieces returns the files that nobody needs any more."""

    def pieces(self, key: CacheKey) -> list[BlobInfo]:
        """Return a cache's pieces, the oldest first."""
        with self._database.read() as connection:
            return _pieces(connection, key)

    def use(self, key: CacheKey, now: float) -> list[BlobInfo]:
        """Return a cache's pieces, the oldest first, and note that a task takes them."""
        with self._database.write() as connection:
            connection.execute(update(PIECES).where(*_of(key)).values(used_at=now))
            return _pieces(connection, key)

    def add(self, key: CacheKey, piece: BlobInfo, now: float) -> None:
        """Write a piece. Repeating it changes nothing."""
        values = {**piece.model_dump(), "created_at": now, "used_at": now}
        with self._database.write() as connection:
            connection.execute(delete(PIECES).where(*_of(key), PIECES.c.sha256 == piece.sha256))
            connection.execute(insert(PIECES).values(**key._asdict(), **values))

    def remove(self, key: CacheKey, pieces: Collection[str]) -> frozenset[str]:
        """Delete pieces of a cache."""
        with self._database.write() as connection:
            for some in portions(pieces):
                connection.execute(delete(PIECES).where(*_of(key), PIECES.c.sha256.in_(some)))
            return _unknown(connection, pieces)

    def least_used(self, owner: str, keep: int = 0) -> list[CacheKey]:
        """Return all of an owner's caches but the `keep` that were used last."""
        used_at = func.max(PIECES.c.used_at)
        columns = (PIECES.c.image, PIECES.c.environment)
        query = select(*columns).where(PIECES.c.owner == owner).group_by(*columns).order_by(used_at)
        with self._database.read() as connection:
            keys = [CacheKey(owner, row.image, row.environment) for row in connection.execute(query)]
        return keys[: max(0, len(keys) - keep)]

    def drop(self, key: CacheKey) -> frozenset[str]:
        """Delete a whole cache."""
        return self.remove(key, [piece.sha256 for piece in self.pieces(key)])

    def unused_since(self, at: float) -> list[CacheKey]:
        """Return the caches that no task took since then."""
        columns = (PIECES.c.owner, PIECES.c.image, PIECES.c.environment)
        query = select(*columns).group_by(*columns).having(func.max(PIECES.c.used_at) < at)
        with self._database.read() as connection:
            return [CacheKey(*row) for row in connection.execute(query)]

    def unknown(self, pieces: Collection[str]) -> frozenset[str]:
        """Return those of these pieces that no cache has."""
        with self._database.read() as connection:
            return _unknown(connection, pieces)


def _of(key: CacheKey) -> Iterable[ColumnElement[bool]]:
    same = (PIECES.c.owner == key.owner, PIECES.c.image == key.image)
    return (*same, PIECES.c.environment == key.environment)


def _pieces(connection: Connection, key: CacheKey) -> list[BlobInfo]:
    columns = (PIECES.c.sha256, PIECES.c.size_bytes)
    query = select(*columns).where(*_of(key)).order_by(PIECES.c.created_at, PIECES.c.sha256)
    rows = connection.execute(query)
    return [BlobInfo(sha256=row.sha256, size_bytes=row.size_bytes) for row in rows]


def _unknown(connection: Connection, pieces: Collection[str]) -> frozenset[str]:
    known: set[str] = set()
    for some in portions(pieces):
        known |= set(connection.execute(select(PIECES.c.sha256).where(PIECES.c.sha256.in_(some))).scalars())
    return frozenset(pieces) - known
