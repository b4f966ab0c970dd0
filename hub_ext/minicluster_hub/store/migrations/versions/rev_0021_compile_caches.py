"""What torch.compile made for the ranks of an owner."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0021"
down_revision = "0020"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "compile_caches",
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("image", sa.Text(), nullable=False),
        sa.Column("environment", sa.String(64), nullable=False),
        sa.Column("sha256", sa.String(64), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.Column("used_at", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("owner", "image", "environment", "sha256", name="pk_compile_caches"),
    )
    op.create_index("ix_compile_caches_owner_size_bytes", "compile_caches", ["owner", "size_bytes"])
    op.create_index("ix_compile_caches_sha256", "compile_caches", ["sha256"])


def downgrade() -> None:
    op.drop_table("compile_caches")
