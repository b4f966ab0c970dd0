"""Which blobs a job takes along, when one was last asked for, and when what is large of a job was removed."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("jobs", sa.Column("removed_at", sa.Float()))
    op.add_column("blobs", sa.Column("asked_at", sa.Float(), nullable=False, server_default="0"))
    op.create_table(
        "job_blobs",
        sa.Column("job_id", sa.Integer(), nullable=False, autoincrement=False),
        sa.Column("sha256", sa.String(64), nullable=False),
        sa.PrimaryKeyConstraint("job_id", "sha256", name="pk_job_blobs"),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name="fk_job_blobs_job_id"),
    )
    op.create_index("ix_job_blobs_sha256", "job_blobs", ["sha256"])


def downgrade() -> None:
    op.drop_table("job_blobs")
    op.drop_column("blobs", "asked_at")
    op.drop_column("jobs", "removed_at")
