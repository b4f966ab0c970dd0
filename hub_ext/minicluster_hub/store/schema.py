"""Migrates a database to the tables of this version, or reports in a sentence why that is impossible.

Alembic costs a tenth of a second and 12 MB, so it is imported only when there is work for it.
"""

from __future__ import annotations

from sqlalchemy import Connection, inspect, text
from sqlalchemy.exc import SQLAlchemyError

from minicluster_hub.store.database import Database, first_line
from minicluster_hub.store.errors import StoreBroken, StoreUnavailable

HEAD = "0022"
"""The newest revision in migrations/versions; a test compares."""

_VERSION_TABLE = "alembic_version"
_UPGRADE_LOCK = 0x6D696E69
"""Any number that no other program locks in the same PostgreSQL database."""


def upgrade(database: Database) -> None:
    """Create or migrate the tables, unless they are right already. Raises StoreBroken."""
    try:
        with database.read() as connection:
            found = _revision(database, connection)
        if found != HEAD:
            with database.write() as connection:
                _migrate(database, connection)
    except StoreUnavailable as error:
        cause = error.__cause__
        detail = first_line(cause) if isinstance(cause, SQLAlchemyError) else str(error)
        raise StoreBroken(_unusable(database, detail)) from error


def _unusable(database: Database, detail: str) -> str:
    if not database.is_sqlite:
        return (
            f"the database {database.name} cannot be used ({detail}); check its URL, and that its server runs"
        )
    if "not a database" in detail or "malformed" in detail:
        return (
            f"the file {database.name} is not a sound SQLite database ({detail}); "
            "put a copy of it back or move it away to start anew"
        )
    return (
        f"the database {database.name} cannot be used ({detail}); "
        "make its folder writable, with space left, or give another data folder"
    )


def _revision(database: Database, connection: Connection) -> str | None:
    """Return the stored revision, or None for an empty database."""
    tables = inspect(connection).get_table_names()
    if _VERSION_TABLE not in tables:
        if "jobs" in tables:
            raise StoreBroken(
                f"the database {database.name} has tables of another program; give Minicluster one of its own"
            )
        return None
    return connection.execute(text("SELECT version_num FROM alembic_version")).scalar_one_or_none()


def _migrate(database: Database, connection: Connection) -> None:
    """Run the migrations in the caller's transaction: a kill in between leaves nothing behind."""
    if not database.is_sqlite:
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _UPGRADE_LOCK})
    from alembic import command
    from alembic.config import Config
    from alembic.script import ScriptDirectory

    config = Config(attributes={"connection": connection})
    config.set_main_option("script_location", "minicluster_hub.store:migrations")
    found = _revision(database, connection)
    known = {script.revision for script in ScriptDirectory.from_config(config).walk_revisions()}
    if found is not None and found not in known:
        raise StoreBroken(
            f"the database {database.name} was made by a newer Minicluster (revision {found}, this one knows "
            f"{HEAD}); start that version, or give another data folder"
        )
    command.upgrade(config, "head")
