"""Halves of slots: a lease is half a slot, so a held slot has two; and usage counts halves."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None

_LEASES = sa.table(
    "leases",
    sa.column("node", sa.Text()),
    sa.column("slot", sa.Integer()),
    sa.column("task_id", sa.Integer()),
    sa.column("server_id", sa.Integer()),
    sa.column("job_id", sa.Integer()),
    sa.column("owner", sa.Text()),
    sa.column("warm", sa.Boolean()),
)
_FIRST_HALF = 1000
"""As in jobs.slot_numbers: slot n has the halves _FIRST_HALF + 2n and the number after it."""
_COUNTS = ("slots", "gpus")


def upgrade() -> None:
    whole, slot = _LEASES.c, _LEASES.c.slot
    for half in (0, 1):
        values = [_FIRST_HALF + 2 * slot + half if one is slot else one for one in whole]
        op.execute(_LEASES.insert().from_select(list(whole), sa.select(*values).where(slot < _FIRST_HALF)))
    op.execute(_LEASES.delete().where(slot < _FIRST_HALF))
    _set_type(sa.Float())


def downgrade() -> None:
    slot = _LEASES.c.slot
    op.execute(_LEASES.delete().where(slot % 2 == 1))
    op.execute(_LEASES.update().values(slot=(slot - _FIRST_HALF) / 2))
    _set_type(sa.Integer())


def _set_type(kind: sa.types.TypeEngine[float] | sa.types.TypeEngine[int]) -> None:
    with op.batch_alter_table("usage", table_kwargs={"sqlite_autoincrement": True}) as table:
        for name in _COUNTS:
            table.alter_column(name, type_=kind, existing_nullable=False)
