"""Which GPUs a notebook server sees, when its owner was told that they are idle, and when they went back."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("servers", sa.Column("gpus", sa.Text(), nullable=False, server_default="[]"))
    op.add_column("servers", sa.Column("warned_at", sa.Float()))
    op.add_column("servers", sa.Column("reclaimed_at", sa.Float()))


def downgrade() -> None:
    op.drop_column("servers", "reclaimed_at")
    op.drop_column("servers", "warned_at")
    op.drop_column("servers", "gpus")
