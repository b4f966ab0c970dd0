"""Who belongs to which groups, what they may have, and which slots are claimed when."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "owner_groups",
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("group_names", sa.Text(), nullable=False),
        sa.Column("seen_at", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("owner", name="pk_owner_groups"),
    )
    op.create_table(
        "allowances",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("choice", sa.Text(), nullable=False),
        sa.Column("chosen_by", sa.Text(), nullable=False),
        sa.Column("since", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_allowances"),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "claims",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("holder", sa.Text(), nullable=False),
        sa.Column("nodes", sa.Text(), nullable=False),
        sa.Column("slots", sa.Integer()),
        sa.Column("begins_at", sa.Float(), nullable=False),
        sa.Column("ends_at", sa.Float()),
        sa.Column("note", sa.Text(), nullable=False),
        sa.Column("made_by", sa.Text(), nullable=False),
        sa.Column("made_at", sa.Float(), nullable=False),
        sa.Column("used_at", sa.Float()),
        sa.Column("over_at", sa.Float()),
        sa.Column("over_why", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_claims"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_claims_over_at", "claims", ["over_at"])


def downgrade() -> None:
    op.drop_table("claims")
    op.drop_table("allowances")
    op.drop_table("owner_groups")
