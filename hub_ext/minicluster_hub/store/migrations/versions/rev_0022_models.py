"""Served models, their versions, replicas and histories."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0022"
down_revision = "0021"
branch_labels = None
depends_on = None


def upgrade() -> None:
    _models()
    _versions()
    _replicas()
    op.create_table(
        "model_events",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("model_id", sa.Integer(), nullable=False),
        sa.Column("at", sa.Float(), nullable=False),
        sa.Column("kind", sa.String(32), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["model_id"], ["models.id"], name="fk_model_events_model_id"),
        sa.PrimaryKeyConstraint("id", name="pk_model_events"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_model_events_model_id_id", "model_events", ["model_id", "id"])


def _models() -> None:
    op.create_table(
        "models",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("replicas", sa.Integer(), nullable=False),
        sa.Column("active", sa.Integer(), nullable=False),
        sa.Column("serving", sa.Integer(), nullable=False),
        sa.Column("shared", sa.Integer(), nullable=False),
        sa.Column("is_open", sa.Integer(), nullable=False),
        sa.Column("auto", sa.Text()),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.Column("chosen_at", sa.Float(), nullable=False),
        sa.Column("stopped_at", sa.Float()),
        sa.Column("ended_at", sa.Float()),
        sa.PrimaryKeyConstraint("id", name="pk_models"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_models_ended_at", "models", ["ended_at"])
    op.create_index("ix_models_owner_name", "models", ["owner", "name"])


def _versions() -> None:
    op.create_table(
        "model_versions",
        sa.Column("model_id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("number", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("idempotency_key", sa.String(64), nullable=False),
        sa.Column("spec", sa.Text(), nullable=False),
        sa.Column("run", sa.Text()),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("value", sa.Float()),
        sa.Column("failures", sa.Integer(), nullable=False),
        sa.Column("error", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.ForeignKeyConstraint(["model_id"], ["models.id"], name="fk_model_versions_model_id"),
        sa.PrimaryKeyConstraint("model_id", "number", name="pk_model_versions"),
        sa.UniqueConstraint("model_id", "idempotency_key", name="uq_model_versions_model_id_idempotency_key"),
    )


def _replicas() -> None:
    op.create_table(
        "model_replicas",
        sa.Column("job_id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("model_id", sa.Integer(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("answered", sa.Integer(), nullable=False),
        sa.Column("retired_at", sa.Float()),
        sa.Column("ended_at", sa.Float()),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name="fk_model_replicas_job_id"),
        sa.ForeignKeyConstraint(["model_id"], ["models.id"], name="fk_model_replicas_model_id"),
        sa.PrimaryKeyConstraint("job_id", name="pk_model_replicas"),
    )
    op.create_index("ix_model_replicas_model_id_ended_at", "model_replicas", ["model_id", "ended_at"])


def downgrade() -> None:
    for table in ("model_events", "model_replicas", "model_versions", "models"):
        op.drop_table(table)
