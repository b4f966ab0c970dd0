"""Images that a cluster offers, data sets with their pieces, and the files that jobs leave."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    _images()
    _datasets()
    _artifacts()


def _images() -> None:
    op.create_table(
        "images",
        sa.Column("digest", sa.String(71), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("reference", sa.Text(), nullable=False),
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("description", sa.Text(), nullable=False),
        sa.Column("device", sa.Text(), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("base_digest", sa.String(71)),
        sa.Column("recipe", sa.Text()),
        sa.Column("state", sa.String(8), nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.Column("changed_at", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("digest", name="pk_images"),
    )
    op.create_index("ix_images_name", "images", ["name"])
    op.create_table(
        "image_nodes",
        sa.Column("digest", sa.String(71), nullable=False),
        sa.Column("node", sa.Text(), nullable=False),
        sa.Column("seen_at", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("digest", "node", name="pk_image_nodes"),
        sa.ForeignKeyConstraint(["digest"], ["images.digest"], name="fk_image_nodes_digest"),
    )
    op.create_table(
        "environments",
        sa.Column("image", sa.Text(), nullable=False),
        sa.Column("versions", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("image", name="pk_environments"),
    )


def _datasets() -> None:
    op.create_table(
        "datasets",
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("manifest_sha256", sa.String(64), nullable=False),
        sa.Column("files", sa.BigInteger(), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("shared", sa.Boolean(), nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("owner", "name", name="pk_datasets"),
    )
    op.create_table(
        "dataset_pieces",
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("manifest_sha256", sa.String(64), nullable=False),
        sa.Column("sha256", sa.String(64), nullable=False),
        sa.PrimaryKeyConstraint("owner", "manifest_sha256", "sha256", name="pk_dataset_pieces"),
    )
    op.create_table(
        "pieces",
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("sha256", sa.String(64), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("asked_at", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("owner", "sha256", name="pk_pieces"),
    )
    op.add_column("jobs", sa.Column("data_attempt_id", sa.Integer()))


def _artifacts() -> None:
    op.create_table(
        "artifacts",
        sa.Column("job_id", sa.Integer(), nullable=False, autoincrement=False),
        sa.Column("part", sa.Integer(), nullable=False, autoincrement=False),
        sa.Column("path", sa.Text(), nullable=False),
        sa.Column("sha256", sa.String(64), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("job_id", "part", "path", name="pk_artifacts"),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name="fk_artifacts_job_id"),
    )


def downgrade() -> None:
    tables = ("artifacts", "dataset_pieces", "pieces", "datasets", "environments", "image_nodes", "images")
    for name in tables:
        op.drop_table(name)
    op.drop_column("jobs", "data_attempt_id")
