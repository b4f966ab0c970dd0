"""The tables of served models: beside `tables`, whose rules hold here too."""

from __future__ import annotations

from sqlalchemy import Column, Float, ForeignKey, Index, Integer, String, Table, Text, UniqueConstraint

from minicluster_hub.store.tables.main import METADATA

# `active`: the version that is wanted. `serving`: the one whose replicas get the requests; 0: none. `auto`:
# the metric by which jobs of the owner become versions; JSON. `chosen_at`: when somebody last sent or
# activated a version, or set `auto`. `stopped_at`: when the owner stopped it, which frees its name.
# `ended_at`: when its last replica had ended after that.
MODELS = Table(
    "models",
    METADATA,
    Column("id", Integer, primary_key=True),
    Column("owner", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("replicas", Integer, nullable=False),
    Column("active", Integer, nullable=False),
    Column("serving", Integer, nullable=False),
    Column("shared", Integer, nullable=False),
    Column("is_open", Integer, nullable=False),
    Column("auto", Text),
    Column("created_at", Float, nullable=False),
    Column("chosen_at", Float, nullable=False),
    Column("stopped_at", Float),
    Column("ended_at", Float),
    Index(None, "ended_at"),
    Index(None, "owner", "name"),
    sqlite_autoincrement=True,
)

# `spec`: of each replica's job; `run`: what is remembered of each of them; JSON. `value`: of the metric.
# `failures`: replicas in a row that ended by themselves before they answered.
MODEL_VERSIONS = Table(
    "model_versions",
    METADATA,
    Column("model_id", Integer, ForeignKey("models.id"), primary_key=True, autoincrement=False),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("idempotency_key", String(64), nullable=False),
    Column("spec", Text, nullable=False),
    Column("run", Text),
    Column("reason", Text, nullable=False),
    Column("value", Float),
    Column("failures", Integer, nullable=False),
    Column("error", Text, nullable=False),
    Column("created_at", Float, nullable=False),
    UniqueConstraint("model_id", "idempotency_key"),
)

# `retired_at`: when it was told to take no more requests. `answered`: whether it ever answered. `ended_at`:
# when the end of its job was dealt with.
REPLICAS = Table(
    "model_replicas",
    METADATA,
    Column("job_id", Integer, ForeignKey("jobs.id"), primary_key=True, autoincrement=False),
    Column("model_id", Integer, ForeignKey("models.id"), nullable=False),
    Column("version", Integer, nullable=False),
    Column("answered", Integer, nullable=False),
    Column("retired_at", Float),
    Column("ended_at", Float),
    Column("created_at", Float, nullable=False),
    Index(None, "model_id", "ended_at"),
)

MODEL_EVENTS = Table(
    "model_events",
    METADATA,
    Column("id", Integer, primary_key=True),
    Column("model_id", Integer, ForeignKey("models.id"), nullable=False),
    Column("at", Float, nullable=False),
    Column("kind", String(32), nullable=False),
    Column("text", Text, nullable=False),
    Index(None, "model_id", "id"),
    sqlite_autoincrement=True,
)
