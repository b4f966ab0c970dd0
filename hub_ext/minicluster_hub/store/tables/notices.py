"""The tables of notices: beside `tables`, whose rules hold here too."""

from __future__ import annotations

from sqlalchemy import Boolean, Column, Float, Index, Integer, String, Table, Text

from minicluster_hub.store.tables.main import METADATA

# Which notices an owner wants, and where to send them. `events`: JSON. `trouble`: why the last was not sent.
NOTICE_WISHES = Table(
    "notice_wishes",
    METADATA,
    Column("owner", Text, primary_key=True),
    Column("events", Text, nullable=False),
    Column("webhook", Text),
    Column("email", Text),
    Column("trouble", Text, nullable=False),
)

# The outbox: a row for each notice and channel, written with what it tells of, deleted once it was sent.
NOTICES = Table(
    "notices",
    METADATA,
    Column("id", Integer, primary_key=True),
    Column("owner", Text, nullable=False),
    Column("channel", String(8), nullable=False),
    Column("body", Text, nullable=False),
    Column("tries", Integer, nullable=False),
    Column("due_at", Float, nullable=False),
    Index(None, "owner", "channel", "due_at"),
    sqlite_autoincrement=True,
)

# The address that an owner's mails go to once the code that was sent there came back.
# `code_sha256`: "" once it did, or after too many wrong ones. `tries`: wrong codes.
NOTICE_EMAILS = Table(
    "notice_emails",
    METADATA,
    Column("owner", Text, primary_key=True),
    Column("address", Text, nullable=False),
    Column("confirmed", Boolean, nullable=False),
    Column("code_sha256", String(64), nullable=False),
    Column("sent_at", Float, nullable=False),
    Column("tries", Integer, nullable=False),
)
