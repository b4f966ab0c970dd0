"""Which of several job services on one PostgreSQL acts: a lock, a lease by the database's clock, an epoch.

The lock (an advisory one, of a connection's session) lets one service at most be the leader, and passes on
at once when its process dies. The lease is for a holder that is frozen or cut off, whose session stays: who
stands by ends that session once the lease was not renewed for `LEASE_S`. Each takeover makes a new epoch,
and every writing transaction of a leader checks its own in the same transaction, so that whatever a former
leader still had in hand is refused, however late it comes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from sqlalchemy import Connection, func, select, text, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.exc import SQLAlchemyError

from minicluster_hub.store.database import Database, DatabasePart
from minicluster_hub.store.errors import NotLeading, StoreUnavailable
from minicluster_hub.store.tables.main import LEADERSHIP

LEASE_S = 3.0
_LOCK = 0x6D696E6A
"""Any number below 2**31 that no other program locks in the same PostgreSQL database."""
_ROW = LEADERSHIP.c.id == 1
_NOW = func.extract("epoch", func.clock_timestamp())

_END_HOLDERS = text(
    "SELECT pg_terminate_backend(pid) FROM pg_locks JOIN pg_stat_activity USING (pid) "
    "WHERE locktype = 'advisory' AND granted AND classid = 0 AND objid = :lock AND objsubid = 1 "
    "AND datname = current_database() AND database = datid AND pid <> pg_backend_pid() "
    "AND state_change < clock_timestamp() - make_interval(secs => :lease_s)"
)
"""Only one that was silent itself: who took the lock a moment ago has not renewed the lease yet."""
_END_WRITERS = text(
    "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'relation' "
    "AND relation = 'leadership'::regclass AND mode = 'RowShareLock' AND pid <> pg_backend_pid()"
)


@dataclass(frozen=True, slots=True)
class LeadershipRow:
    """The row as it stands. age_s: since its holder renewed it, by the database's clock."""

    epoch: int
    holder: str
    age_s: float


class Leadership:
    """One service's part in the leader election. All methods block, and may raise StoreUnavailable.

    holder: the URL at which the others and the tasks reach this service.
    """

    def __init__(self, database: Database, holder: str, lease_s: float = LEASE_S) -> None:
        self._database = database
        self._holder = holder
        self.lease_s = lease_s
        self._session: Connection | None = None
        self.epoch: int | None = None

    def fence(self, connection: Connection) -> None:
        """Raise NotLeading if this service does not lead; block a takeover until the transaction ends."""
        # KEY SHARE lets the lease be renewed meanwhile, and makes a takeover wait.
        row = select(LEADERSHIP.c.epoch).where(_ROW).with_for_update(read=True, key_share=True)
        epoch = connection.execute(row).scalar_one_or_none()
        if self.epoch is None or epoch != self.epoch:
            raise NotLeading(self._holder)

    def read(self) -> LeadershipRow:
        """Return who leads, as the row says."""
        with self._in_session() as connection:
            return _row(connection)

    def take(self) -> bool:
        """Become the leader if nobody else is; return whether this service is now."""
        with self._in_session() as connection:
            if not _try_lock(connection):
                if _row(connection).age_s > self.lease_s:
                    # The ended session is gone in a moment; the next call takes the lock.
                    connection.execute(_END_HOLDERS, {"lock": _LOCK, "lease_s": self.lease_s})
                return False
        self.epoch = self._begin_epoch()
        return True

    def renew(self) -> None:
        """Keep the lease. Raises NotLeading when another service leads."""
        with self._in_session() as connection:
            # A new session (the database was restarted) has not the lock; as long as the epoch is
            # ours nobody took it, and the row is what counts.
            _try_lock(connection)
            mine = update(LEADERSHIP).where(_ROW, LEADERSHIP.c.epoch == self.epoch)
            if connection.execute(mine.values(renewed_at=_NOW)).rowcount == 0:
                self.epoch = None
                raise NotLeading(self._holder)

    def close(self) -> None:
        """Release the lead, so that another service takes over at once."""
        self.epoch = None
        session, self._session = self._session, None
        if session is not None:
            with suppress(SQLAlchemyError):
                session.execute(text("SELECT pg_advisory_unlock_all()"))
            session.invalidate()
            session.close()

    def _begin_epoch(self) -> int:
        """Write a new epoch, behind all transactions of the one before; return it."""
        try:
            with self._in_session() as connection:
                return self._write_epoch(connection)
        except StoreUnavailable:
            # A leader that froze in the middle of a transaction would block us for ever.
            with self._in_session() as connection:
                connection.execute(_END_WRITERS)
            raise

    def _write_epoch(self, connection: Connection) -> int:
        connection.execute(text("SET LOCAL lock_timeout = '500ms'"))
        connection.execute(select(LEADERSHIP.c.id).where(_ROW).with_for_update())
        values = {"epoch": LEADERSHIP.c.epoch + 1, "holder": self._holder, "renewed_at": _NOW}
        written = update(LEADERSHIP).where(_ROW).values(values).returning(LEADERSHIP.c.epoch)
        return connection.execute(written).scalar_one()

    @contextmanager
    def _in_session(self) -> Iterator[Connection]:
        """A transaction of the session that has the lock. After an error, a new session is opened."""
        with self._database.translating_errors():
            try:
                session = self._session or self._open()
                with session.begin():
                    yield session
            except SQLAlchemyError:
                self._forget()
                raise

    def _open(self) -> Connection:
        self._session = session = self._database.connect()
        with session.begin():
            first = {"id": 1, "epoch": 0, "holder": "", "renewed_at": 0.0}
            session.execute(insert(LEADERSHIP).values(first).on_conflict_do_nothing())
        return session

    def _forget(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.invalidate()
            session.close()


def _row(connection: Connection) -> LeadershipRow:
    age = (_NOW - LEADERSHIP.c.renewed_at).label("age_s")
    row = connection.execute(select(LEADERSHIP.c.epoch, LEADERSHIP.c.holder, age).where(_ROW)).one()
    return LeadershipRow(row.epoch, row.holder, float(row.age_s))


def _try_lock(connection: Connection) -> bool:
    """Take the lock unless another session has it. It is counted: taken twice, it is this session's still."""
    return connection.execute(text("SELECT pg_try_advisory_lock(:lock)"), {"lock": _LOCK}).scalar_one()


class LeadershipQueries(DatabasePart):
    """The part of the store that deals with other services on the same database."""

    _leadership: Leadership | None = None

    @property
    def epoch(self) -> int | None:
        """Return the number of this service's term as leader; None if it does not lead, or is alone."""
        return self._leadership.epoch if self._leadership else None

    def compete(self, holder: str, lease_s: float = LEASE_S) -> Leadership | None:
        """Let the service at this URL write only while it leads. None: it is the only one (SQLite)."""
        if self._database.is_sqlite:
            return None
        self._leadership = Leadership(self._database, holder, lease_s)
        self._database.fence = self._leadership.fence
        return self._leadership

    def confirm_lead(self) -> None:
        """Raise NotLeading unless this service leads, or is the only one."""
        if self._database.fence is not None:
            with self._database.write():
                pass
