"""Snapshots of jobs, losses in a row, ranks that joined later, and which of several job services acts."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("jobs", sa.Column("losses", sa.Integer(), nullable=False, server_default="0"))
    op.add_column("ranks", sa.Column("joined", sa.Boolean(), nullable=False, server_default=sa.false()))
    op.create_table(
        "snapshots",
        sa.Column("job_id", sa.Integer(), nullable=False),
        sa.Column("step", sa.BigInteger(), nullable=False),
        sa.Column("part", sa.Integer(), nullable=False),
        sa.Column("parts", sa.Integer(), nullable=False),
        sa.Column("attempt_id", sa.Integer(), nullable=False),
        sa.Column("sha256", sa.String(64), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("job_id", "step", "part", name="pk_snapshots"),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name="fk_snapshots_job_id"),
        sa.ForeignKeyConstraint(["attempt_id"], ["attempts.id"], name="fk_snapshots_attempt_id"),
    )
    op.create_table(
        "leadership",
        sa.Column("id", sa.Integer(), nullable=False, autoincrement=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("holder", sa.Text(), nullable=False),
        sa.Column("renewed_at", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_leadership"),
    )


def downgrade() -> None:
    op.drop_table("leadership")
    op.drop_table("snapshots")
    op.drop_column("ranks", "joined")
    op.drop_column("jobs", "losses")
