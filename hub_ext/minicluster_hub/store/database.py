"""The connection to SQLite or PostgreSQL: how it is opened, and the two kinds of transaction.

A reading transaction sees one state of the database from its first to its last query. Writing
ones follow each other on SQLite; on PostgreSQL they lock the rows they decide from.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, IntegrityError, SQLAlchemyError

from minicluster_hub.store.errors import StoreBroken, StoreFull, StoreUnavailable
from minicluster_hub.support.database_url import without_password

BUSY_TIMEOUT_S = 10
_WRITES = "minicluster_writes"
_POSTGRESQL_DISK_FULL = "53100"


class Database:
    """One database, safe to use from several threads."""

    def __init__(self, url: URL) -> None:
        self.url = url
        engine = _sqlite_engine(url) if self.is_sqlite else _postgresql_engine(url)
        self._engine = engine
        self._writing = engine.execution_options(**{_WRITES: True})
        # A snapshot for all queries of a reading transaction; SQLite gives one anyway.
        snapshot = {} if self.is_sqlite else {"isolation_level": "REPEATABLE READ"}
        self._reading = engine.execution_options(**snapshot)
        self.fence: Callable[[Connection], None] | None = None
        """Called first in each writing transaction; raises to forbid it."""

    @property
    def is_sqlite(self) -> bool:
        return self.url.get_backend_name() == "sqlite"

    @property
    def name(self) -> str:
        """Its name in messages: the file, or the URL without its password."""
        if self.is_sqlite:
            return self.url.database or ":memory:"
        return without_password(self.url)

    @contextmanager
    def read(self) -> Iterator[Connection]:
        with self.translating_errors(), self._reading.begin() as connection:
            yield connection

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """A transaction. It is committed as a whole or, if the block raises, not at all."""
        with self.translating_errors(), self._writing.begin() as connection:
            if self.fence is not None:
                self.fence(connection)
            yield connection

    def connect(self) -> Connection:
        """Return a connection that is the caller's until closed. Raises the driver's errors."""
        return self._engine.connect()

    def close(self) -> None:
        self._engine.dispose()

    @contextmanager
    def translating_errors(self) -> Iterator[None]:
        """Turn the driver's errors into ours. A violated key passes: the caller handles it."""
        try:
            yield
        except IntegrityError:
            raise
        except SQLAlchemyError as error:
            message = f"the database {self.name} did not take a call: {first_line(error)}"
            raise (StoreFull if _is_full(error) else StoreUnavailable)(message) from error


class DatabasePart:
    """Base of the store's parts: one transaction per method."""

    def __init__(self, database: Database) -> None:
        self._database = database


def open_database(url: str) -> Database:
    """Return the database of an URL, without speaking to it yet. Raises StoreBroken."""
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):  # The port is no number, say: SQLAlchemy's words have it all.
        raise StoreBroken(_bad_url("it cannot be read as an URL")) from None
    backend = parsed.get_backend_name()
    if backend == "sqlite":
        _prepare_file(parsed)
        return Database(parsed.set(drivername="sqlite+pysqlite"))
    if backend in ("postgresql", "postgres"):
        return Database(parsed.set(drivername="postgresql+psycopg"))
    raise StoreBroken(_bad_url(f"{backend!r} is not a database we know"))


def first_line(error: SQLAlchemyError) -> str:
    """Return the driver's message, without SQLAlchemy's additions."""
    cause = error.orig if isinstance(error, DBAPIError) else error
    return str(cause).strip().split("\n", 1)[0] or type(cause).__name__


def _is_full(error: SQLAlchemyError) -> bool:
    """Whether the database's disk is full, as SQLite and PostgreSQL say it."""
    cause = error.orig if isinstance(error, DBAPIError) else None
    codes = getattr(cause, "sqlite_errorcode", None), getattr(cause, "sqlstate", None)
    return codes[0] == sqlite3.SQLITE_FULL or codes[1] == _POSTGRESQL_DISK_FULL


def _bad_url(why: str) -> str:
    return (
        f"the database URL is wrong: {why}; give sqlite:////path/to/file.sqlite "
        "or postgresql://user:password@host/database"
    )


def _prepare_file(url: URL) -> None:
    """Make the file's folder and the file itself, for its owner only: specs may hold secrets."""
    if not url.database or url.database == ":memory:":
        return
    path = Path(url.database)
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    except OSError as error:
        raise StoreBroken(
            f"the database {path} cannot be written ({error.strerror}); "
            "make its folder writable or give another data folder"
        ) from error
    _choose_journal(path)


def _choose_journal(path: Path) -> None:
    """Switch the file to write-ahead journals, one process at a time: SQLite does not wait for that lock."""
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        # What cannot be locked (NFS) or is no database is left to whoever opens it, and says so.
        with suppress(OSError, sqlite3.Error):
            fcntl.flock(folder, fcntl.LOCK_EX)
            with closing(sqlite3.connect(path, timeout=BUSY_TIMEOUT_S)) as connection:
                connection.execute("PRAGMA journal_mode=WAL")
    finally:
        os.close(folder)


def _sqlite_engine(url: URL) -> Engine:
    engine = create_engine(url, connect_args={"timeout": BUSY_TIMEOUT_S})

    @event.listens_for(engine, "connect")
    def _prepare(dbapi_connection: Any, _record: object) -> None:
        # The driver must begin no transactions of its own: ours are told below.
        dbapi_connection.isolation_level = None
        for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON"):
            dbapi_connection.execute(f"PRAGMA {pragma}")

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        # IMMEDIATE takes the write lock before the first read, so that no other writer comes between.
        begin = "BEGIN IMMEDIATE" if connection.get_execution_options().get(_WRITES) else "BEGIN"
        # By the driver itself: SQLAlchemy's way around a statement takes as long as a query.
        driver = connection.connection.dbapi_connection
        try:
            driver.execute(begin)  # type: ignore[union-attr]
        except sqlite3.Error as error:
            raise DBAPIError.instance(begin, None, error, sqlite3.Error) from error

    return engine


def _postgresql_engine(url: URL) -> Engine:
    return create_engine(url, pool_pre_ping=True, connect_args={"connect_timeout": BUSY_TIMEOUT_S})
