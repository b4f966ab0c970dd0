"""Cells of sessions: jobs whose ranks stay, and run one cell after the other."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "session_cells",
        sa.Column("job_id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("number", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("idempotency_key", sa.String(64), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("body", sa.Text()),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("error", sa.Text()),
        sa.Column("outcome", sa.Text()),
        sa.Column("output", sa.Text(), nullable=False),
        sa.Column("breaks_group", sa.Integer(), nullable=False),
        sa.Column("submitted_at", sa.Float(), nullable=False),
        sa.Column("ended_at", sa.Float()),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name="fk_session_cells_job_id"),
        sa.PrimaryKeyConstraint("job_id", "number", name="pk_session_cells"),
        sa.UniqueConstraint("job_id", "idempotency_key", name="uq_session_cells_job_id_idempotency_key"),
    )


def downgrade() -> None:
    op.drop_table("session_cells")
