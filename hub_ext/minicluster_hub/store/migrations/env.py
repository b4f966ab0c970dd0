"""Alembic runs this file for each migration; the connection, in its transaction, is the caller's."""

from __future__ import annotations

from alembic import context

from minicluster_hub.store.tables.main import METADATA

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=METADATA,
    transactional_ddl=True,
    render_as_batch=True,
)
with context.begin_transaction():
    context.run_migrations()
