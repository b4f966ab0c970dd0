"""Notebook servers take slots too, homes have a node, and a gang has an image of its own."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    _servers()
    _homes()
    op.add_column("gangs", sa.Column("image", sa.Text()))
    op.add_column("gangs", sa.Column("shm_bytes", sa.BigInteger()))
    with op.batch_alter_table("leases") as leases:
        leases.add_column(sa.Column("server_id", sa.Integer()))
        leases.alter_column("task_id", existing_type=sa.Integer(), nullable=True)
        leases.create_foreign_key("fk_leases_server_id", "servers", ["server_id"], ["id"])
        one_holder = "(task_id IS NULL) <> (server_id IS NULL)"
        leases.create_check_constraint(op.f("ck_leases_one_holder"), one_holder)
        leases.create_index("ix_leases_server_id", ["server_id"])


def downgrade() -> None:
    op.execute("DELETE FROM leases WHERE server_id IS NOT NULL")
    with op.batch_alter_table("leases") as leases:
        leases.drop_index("ix_leases_server_id")
        leases.drop_constraint(op.f("ck_leases_one_holder"), type_="check")
        leases.drop_constraint("fk_leases_server_id", type_="foreignkey")
        leases.alter_column("task_id", existing_type=sa.Integer(), nullable=False)
        leases.drop_column("server_id")
    op.drop_column("gangs", "shm_bytes")
    op.drop_column("gangs", "image")
    op.drop_table("homes")
    op.drop_table("servers")


def _servers() -> None:
    op.create_table(
        "servers",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("node", sa.Text(), nullable=False),
        sa.Column("slots", sa.Text(), nullable=False),
        sa.Column("until", sa.Float()),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_servers"),
        sa.UniqueConstraint("owner", "name", name="uq_servers_owner_name"),
        sqlite_autoincrement=True,
    )


def _homes() -> None:
    op.create_table(
        "homes",
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("node", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("owner", name="pk_homes"),
    )
