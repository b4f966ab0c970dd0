"""The tables of blobs and of who needs them: beside `tables`, whose rules hold here too."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Float, ForeignKey, Index, Integer, String, Table, Text

from minicluster_hub.store.tables.main import METADATA

# One that no job names is removed some time after it came, or after its owner last asked for it.
BLOBS = Table(
    "blobs",
    METADATA,
    Column("owner", Text, primary_key=True),
    Column("sha256", String(64), primary_key=True),
    Column("size_bytes", BigInteger, nullable=False),
    Column("created_at", Float, nullable=False),
    Column("asked_at", Float, nullable=False, server_default="0"),
)

# The blobs that a job takes along; none of a job whose blobs were removed. Results are in its attempts.
JOB_BLOBS = Table(
    "job_blobs",
    METADATA,
    Column("job_id", Integer, ForeignKey("jobs.id"), primary_key=True, autoincrement=False),
    Column("sha256", String(64), primary_key=True),
    Index(None, "sha256"),
)
