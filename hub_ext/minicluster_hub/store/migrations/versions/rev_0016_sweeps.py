"""Sweeps, their trials, what was drawn for each of them, and the metric at their steps."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "sweeps",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("idempotency_key", sa.String(64), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("spec", sa.Text(), nullable=False),
        sa.Column("settings", sa.Text(), nullable=False),
        sa.Column("run", sa.Text()),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("error", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.Column("ended_at", sa.Float()),
        sa.PrimaryKeyConstraint("id", name="pk_sweeps"),
        sa.UniqueConstraint("owner", "idempotency_key", name="uq_sweeps_owner_idempotency_key"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_sweeps_state", "sweeps", ["state"])
    op.create_index("ix_sweeps_owner_id", "sweeps", ["owner", "id"])
    _create_trials()
    _of_trials(
        "sweep_parameters",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("among", sa.Text(), nullable=False),
        sa.Column("value", sa.Float(), nullable=False),
    )
    _of_trials(
        "sweep_values",
        sa.Column("step", sa.Float(), nullable=False),
        sa.Column("value", sa.Float(), nullable=False),
        sa.Column("at", sa.Float(), nullable=False),
    )


def _create_trials() -> None:
    op.create_table(
        "sweep_trials",
        sa.Column("sweep_id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("number", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("job_id", sa.Integer(), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("value", sa.Float()),
        sa.Column("step", sa.Float()),
        sa.Column("pruned_at", sa.Float()),
        sa.Column("left_at", sa.Float()),
        sa.Column("left_step", sa.Float()),
        sa.Column("error", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.Column("ended_at", sa.Float()),
        sa.PrimaryKeyConstraint("sweep_id", "number", name="pk_sweep_trials"),
        sa.ForeignKeyConstraint(["sweep_id"], ["sweeps.id"], name="fk_sweep_trials_sweep_id"),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name="fk_sweep_trials_job_id"),
        sa.UniqueConstraint("job_id", name="uq_sweep_trials_job_id"),
    )
    op.create_index("ix_sweep_trials_state", "sweep_trials", ["state"])


def _of_trials(name: str, key: sa.Column, *more: sa.Column) -> None:
    """Create a table with rows of trials; `key` tells a trial's rows apart."""
    op.create_table(
        name,
        sa.Column("sweep_id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("number", sa.Integer(), autoincrement=False, nullable=False),
        key,
        *more,
        sa.PrimaryKeyConstraint("sweep_id", "number", key.name, name=f"pk_{name}"),
        sa.ForeignKeyConstraint(
            ["sweep_id", "number"],
            ["sweep_trials.sweep_id", "sweep_trials.number"],
            name=f"fk_{name}_sweep_id",
        ),
    )


def downgrade() -> None:
    for name in ("sweep_values", "sweep_parameters", "sweep_trials", "sweeps"):
        op.drop_table(name)
