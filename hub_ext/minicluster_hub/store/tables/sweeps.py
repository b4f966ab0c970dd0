"""The tables of sweeps: beside `tables`, whose rules hold here too."""

from __future__ import annotations

from sqlalchemy import (
    Column,
    Float,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    String,
    Table,
    Text,
    UniqueConstraint,
)

from minicluster_hub.store.tables.main import METADATA

# `spec`: of each trial's job; `settings`, `run`: as submitted; JSON.
SWEEPS = Table(
    "sweeps",
    METADATA,
    Column("id", Integer, primary_key=True),
    Column("owner", Text, nullable=False),
    Column("idempotency_key", String(64), nullable=False),
    Column("name", Text, nullable=False),
    Column("spec", Text, nullable=False),
    Column("settings", Text, nullable=False),
    Column("run", Text),
    Column("state", String(16), nullable=False),
    Column("error", Text, nullable=False),
    Column("created_at", Float, nullable=False),
    Column("ended_at", Float),
    UniqueConstraint("owner", "idempotency_key"),
    Index(None, "state"),
    Index(None, "owner", "id"),
    sqlite_autoincrement=True,
)

# `state`: "open" until the trial is over. `value`, `step`: the last that it logged, once it is over.
# `pruned_at`: when it was decided that its ranks shall leave; `left_step`: where they did.
# `ahead`: what was drawn before it was asked for; JSON.
TRIALS = Table(
    "sweep_trials",
    METADATA,
    Column("sweep_id", Integer, ForeignKey("sweeps.id"), primary_key=True, autoincrement=False),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("job_id", Integer, ForeignKey("jobs.id"), nullable=False),
    Column("state", String(16), nullable=False),
    Column("value", Float),
    Column("step", Float),
    Column("pruned_at", Float),
    Column("left_at", Float),
    Column("left_step", Float),
    Column("error", Text, nullable=False),
    Column("created_at", Float, nullable=False),
    Column("ended_at", Float),
    Column("ahead", Text),
    UniqueConstraint("job_id"),
    Index(None, "state"),
)

# What was drawn for a trial, and from what; JSON. A repeated attempt gets the same.
PARAMETERS = Table(
    "sweep_parameters",
    METADATA,
    Column("sweep_id", Integer, primary_key=True, autoincrement=False),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("name", Text, primary_key=True),
    Column("position", Integer, nullable=False),
    Column("among", Text, nullable=False),
    Column("value", Float, nullable=False),
    ForeignKeyConstraint(
        ["sweep_id", "number"],
        ["sweep_trials.sweep_id", "sweep_trials.number"],
        name="fk_sweep_parameters_sweep_id",
    ),
)

# The metric of a trial at its steps, as the pruner compares them.
VALUES = Table(
    "sweep_values",
    METADATA,
    Column("sweep_id", Integer, primary_key=True, autoincrement=False),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("step", Float, primary_key=True),
    Column("value", Float, nullable=False),
    Column("at", Float, nullable=False),
    ForeignKeyConstraint(
        ["sweep_id", "number"],
        ["sweep_trials.sweep_id", "sweep_trials.number"],
        name="fk_sweep_values_sweep_id",
    ),
)
