"""The tables of runs: what is remembered of a job for its owner. Each job has a row in `runs`."""

from __future__ import annotations

from sqlalchemy import Boolean, Column, Float, ForeignKey, Index, Integer, String, Table, Text

from minicluster_hub.store.tables.main import METADATA

# name: as in the job's spec, for searches. origin: wire.RunOrigin as JSON, without its tags.
RUNS = Table(
    "runs",
    METADATA,
    Column("job_id", Integer, ForeignKey("jobs.id"), primary_key=True, autoincrement=False),
    Column("owner", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("note", Text, nullable=False),
    Column("favourite", Boolean, nullable=False),
    Column("origin", Text, nullable=False),
    Index(None, "owner", "name"),
)

RUN_TAGS = Table(
    "run_tags",
    METADATA,
    Column("job_id", Integer, ForeignKey("jobs.id"), primary_key=True, autoincrement=False),
    Column("tag", String(64), primary_key=True),
    Column("place", Integer, nullable=False),
    Index(None, "tag"),
)

# The newest value of each metric, for the list; all values are in the run's file of series.
RUN_METRICS = Table(
    "run_metrics",
    METADATA,
    Column("job_id", Integer, ForeignKey("jobs.id"), primary_key=True, autoincrement=False),
    Column("name", Text, primary_key=True),
    Column("value", Float),
    Column("step", Float),
    Column("low", Float),
    Column("high", Float),
    Index(None, "name"),
)
