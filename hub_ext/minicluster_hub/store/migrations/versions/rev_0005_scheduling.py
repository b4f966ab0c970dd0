"""The policies that were active, and who held slots when."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "policies",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("choice", sa.Text(), nullable=False),
        sa.Column("chosen_by", sa.Text(), nullable=False),
        sa.Column("since", sa.Float(), nullable=False),
        sa.Column("ended", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_policies"),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "usage",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("job_id", sa.Integer()),
        sa.Column("server_id", sa.Integer()),
        sa.Column("task_id", sa.Integer()),
        sa.Column("node", sa.Text(), nullable=False),
        sa.Column("slots", sa.Integer(), nullable=False),
        sa.Column("gpus", sa.Integer(), nullable=False),
        sa.Column("began_at", sa.Float(), nullable=False),
        sa.Column("ended_at", sa.Float()),
        sa.PrimaryKeyConstraint("id", name="pk_usage"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_usage_ended_at", "usage", ["ended_at"])


def downgrade() -> None:
    op.drop_table("usage")
    op.drop_table("policies")
