"""What is drawn for a trial before its ranks ask for it."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("sweep_trials", sa.Column("ahead", sa.Text()))


def downgrade() -> None:
    op.drop_column("sweep_trials", "ahead")
