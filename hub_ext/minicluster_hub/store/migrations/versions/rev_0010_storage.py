"""Files that jobs have on the disk, by owner, so that they can be counted; images by owner."""

from __future__ import annotations

import json

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

_KNOWN = """
    INSERT INTO job_files (job_id, kind, sha256, owner, size_bytes)
    SELECT {table}.job_id, '{kind}', {table}.sha256, jobs.owner, MAX({table}.size_bytes)
    FROM {table} JOIN jobs ON jobs.id = {table}.job_id
    GROUP BY {table}.job_id, {table}.sha256, jobs.owner
"""


def upgrade() -> None:
    op.create_table(
        "job_files",
        sa.Column("job_id", sa.Integer(), nullable=False, autoincrement=False),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("sha256", sa.String(64), nullable=False),
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("job_id", "kind", "sha256", name="pk_job_files"),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name="fk_job_files_job_id"),
    )
    op.create_index("ix_job_files_owner_kind_size_bytes", "job_files", ["owner", "kind", "size_bytes"])
    op.create_index("ix_images_owner", "images", ["owner"])
    op.create_index("ix_dataset_pieces_owner_sha256", "dataset_pieces", ["owner", "sha256"])
    for table, kind in (("snapshots", "snapshots"), ("artifacts", "files")):
        op.execute(_KNOWN.format(table=table, kind=kind))
    op.add_column("images", sa.Column("layer_bytes", sa.BigInteger(), nullable=False, server_default="0"))
    _measure_layers()


def _measure_layers() -> None:
    images = sa.table("images", sa.column("digest"), sa.column("recipe"), sa.column("layer_bytes"))
    connection = op.get_bind()
    published = sa.select(images.c.digest, images.c.recipe).where(images.c.recipe.is_not(None))
    for row in connection.execute(published).all():
        layer_bytes = json.loads(row.recipe).get("layer_bytes", 0)
        same = images.c.digest == row.digest
        connection.execute(sa.update(images).where(same).values(layer_bytes=layer_bytes))


def downgrade() -> None:
    op.drop_column("images", "layer_bytes")
    op.drop_index("ix_dataset_pieces_owner_sha256", "dataset_pieces")
    op.drop_index("ix_images_owner", "images")
    op.drop_table("job_files")
