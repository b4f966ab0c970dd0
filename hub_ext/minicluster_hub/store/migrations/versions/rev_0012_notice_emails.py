"""Addresses of e-mails have to be confirmed, also those that are there: whose they are was never shown."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None

_WISHES = sa.table("notice_wishes", sa.column("email", sa.Text), sa.column("trouble", sa.Text))
_TROUBLE = "e-mails wait until you confirm your address: ask for them again, as the guide tells"


def upgrade() -> None:
    op.create_table(
        "notice_emails",
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("address", sa.Text(), nullable=False),
        sa.Column("confirmed", sa.Boolean(), nullable=False),
        sa.Column("code_sha256", sa.String(64), nullable=False),
        sa.Column("sent_at", sa.Float(), nullable=False),
        sa.Column("tries", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("owner", name="pk_notice_emails"),
    )
    op.get_bind().execute(_WISHES.update().where(_WISHES.c.email.is_not(None)).values(trouble=_TROUBLE))


def downgrade() -> None:
    op.drop_table("notice_emails")
