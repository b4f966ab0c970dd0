"""Policies that came as source through the API are taken back: they are files of the installer's now."""

from __future__ import annotations

import json

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

_TABLE = sa.table(
    "policies", sa.column("id", sa.Integer), sa.column("choice", sa.Text), sa.column("ended", sa.Text)
)


def upgrade() -> None:
    """The source stays in its row: it may be the only copy that a lab has."""
    connection = op.get_bind()
    for row in connection.execute(sa.select(_TABLE).where(_TABLE.c.ended == "")).all():
        choice = json.loads(row.choice)
        if choice.get("source") is not None:
            name = choice["policy"]
            why = (
                f"{name} was taken back: it came as source, which is not taken any more. Put "
                f"{name}.py into the folder of policies (up --policies, or DATA/policies), then choose it. "
                "Its text is still in the database: docs/administration.md, Upgrade"
            )
            connection.execute(_TABLE.update().where(_TABLE.c.id == row.id).values(ended=why))


def downgrade() -> None:
    """Nothing: what was taken back can be chosen again."""
