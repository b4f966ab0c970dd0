"""Who wants to be told of what, and what is still to be sent."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "notice_wishes",
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("events", sa.Text(), nullable=False),
        sa.Column("webhook", sa.Text()),
        sa.Column("email", sa.Text()),
        sa.Column("trouble", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("owner", name="pk_notice_wishes"),
    )
    op.create_table(
        "notices",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("channel", sa.String(8), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.Column("tries", sa.Integer(), nullable=False),
        sa.Column("due_at", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_notices"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_notices_owner_channel_due_at", "notices", ["owner", "channel", "due_at"])


def downgrade() -> None:
    op.drop_table("notices")
    op.drop_table("notice_wishes")
