"""Which owner has which blob. The bytes are files; see minicluster_hub.blobs."""

from __future__ import annotations

from sqlalchemy import Connection, insert, select

from minicluster_hub.store.tables import BLOBS


def add(connection: Connection, owner: str, sha256: str, size_bytes: int, now: float) -> None:
    """Raises IntegrityError when the owner has it already."""
    values = {"owner": owner, "sha256": sha256, "size_bytes": size_bytes, "created_at": now}
    connection.execute(insert(BLOBS).values(values))


def size(connection: Connection, owner: str, sha256: str) -> int | None:
    query = select(BLOBS.c.size_bytes).where(BLOBS.c.owner == owner, BLOBS.c.sha256 == sha256)
    return connection.execute(query).scalar_one_or_none()
