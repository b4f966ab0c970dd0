"""Versions of data sets that runs read: they stay for a while when a newer one takes their place."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "dataset_versions",
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("manifest_sha256", sa.String(64), nullable=False),
        sa.Column("files", sa.BigInteger(), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("read_at", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("owner", "name", "manifest_sha256", name="pk_dataset_versions"),
    )


def downgrade() -> None:
    op.drop_table("dataset_versions")
