"""The table `claims` is called `reservations`, as everywhere else; its rows move with their ids."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None

_OLD = ("claims", "over_at", "over_why")
_NEW = ("reservations", "closed_at", "closed_reason")


def upgrade() -> None:
    _move(_OLD, _NEW)


def downgrade() -> None:
    _move(_NEW, _OLD)


def _move(old: tuple[str, str, str], new: tuple[str, str, str]) -> None:
    """Copy the rows into a new table, so that its key, index and sequence have its name on each database."""
    table, closed_at, closed_reason = new
    kept = (
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
    )
    op.create_table(
        table,
        *kept,
        sa.Column(closed_at, sa.Float()),
        sa.Column(closed_reason, sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=f"pk_{table}"),
        sqlite_autoincrement=True,
    )
    names = ", ".join(column.name for column in kept)
    op.execute(
        f"INSERT INTO {table} ({names}, {closed_at}, {closed_reason}) "  # noqa: S608
        f"SELECT {names}, {old[1]}, {old[2]} FROM {old[0]} ORDER BY id"
    )
    if op.get_bind().dialect.name == "postgresql":
        # SQLite counts on from copied ids by itself.
        op.execute(
            f"SELECT setval(pg_get_serial_sequence('{table}', 'id'), "  # noqa: S608
            f"(SELECT COALESCE(MAX(id), 0) + 1 FROM {table}), false)"
        )
    op.drop_table(old[0])
    op.create_index(f"ix_{table}_{closed_at}", table, [closed_at])
