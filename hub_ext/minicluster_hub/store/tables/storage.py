"""The tables of jobs' files and of compile caches: beside `tables`, whose rules hold here too."""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    ColumnElement,
    Float,
    ForeignKey,
    Index,
    Integer,
    String,
    Table,
    Text,
    case,
)

from minicluster.wire import FILE_BYTES
from minicluster_hub.store.tables.main import METADATA

# Files that one job alone has, from the moment they are on the disk, whether its agent told of them or not.
# kind: a StorageKind. The output is one row without a SHA-256, whose size is rounded up.
JOB_FILES = Table(
    "job_files",
    METADATA,
    Column("job_id", Integer, ForeignKey("jobs.id"), primary_key=True, autoincrement=False),
    Column("kind", String(16), primary_key=True),
    Column("sha256", String(64), primary_key=True),
    Column("owner", Text, nullable=False),
    Column("size_bytes", BigInteger, nullable=False),
    Index(None, "owner", "kind", "size_bytes"),
)

# The pieces of what torch.compile made: a cache is an owner, an image ("": the engine's environment) and an
# environment (see wire.files.compile_caches). `used_at`: when a task last took it.
COMPILE_CACHES = Table(
    "compile_caches",
    METADATA,
    Column("owner", Text, primary_key=True),
    Column("image", Text, primary_key=True),
    Column("environment", String(64), primary_key=True),
    Column("sha256", String(64), primary_key=True),
    Column("size_bytes", BigInteger, nullable=False),
    Column("created_at", Float, nullable=False),
    Column("used_at", Float, nullable=False),
    Index(None, "owner", "size_bytes"),
    Index(None, "sha256"),
)


def cost(size_bytes: ColumnElement[Any]) -> ColumnElement[int]:
    """Return the size for which a file of this size counts."""
    return case((size_bytes < FILE_BYTES, FILE_BYTES), else_=size_bytes)
