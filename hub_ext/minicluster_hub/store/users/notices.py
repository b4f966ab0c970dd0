"""Notices: which owner wants which, and an outbox of those that are still to be sent.

A notice is written in the transaction of its event, and deleted once it was sent. A service that is killed
in between sends it again with the same id: none is lost.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from typing import Any
from uuid import uuid4

from sqlalchemy import ColumnElement, Connection, Select, and_, delete, exists, func, insert, select, update

from minicluster.wire import ErrorKind, JobError, JobState, Notice, NoticeEvent, NoticeSettings
from minicluster_hub.jobs.records import JobRecord
from minicluster_hub.store.database import DatabasePart
from minicluster_hub.store.rows import AnyRow, clean
from minicluster_hub.store.tables.notices import NOTICE_EMAILS, NOTICE_WISHES, NOTICES

WEBHOOK, EMAIL = "webhook", "email"
MOST_WAITING = 100
"""Most notices of one owner and channel, so that unsent ones do not fill the database."""
_EVENTS = {
    JobState.RUNNING: NoticeEvent.STARTED,
    JobState.SUCCEEDED: NoticeEvent.ENDED,
    JobState.STOPPED: NoticeEvent.ENDED,
    JobState.FAILED: NoticeEvent.FAILED,
    JobState.YIELDING: NoticeEvent.PREEMPTED,
}
_OWN_WORDS = {
    ErrorKind.EXCEPTION: "raised an exception",
    ErrorKind.EXIT: "ended the process",
    ErrorKind.START: "did not start",
}
"""Used for failures whose messages may contain text of the user's code or of a container."""
NoticeQueue = tuple[str, str]
"""An owner and a channel."""

CODE_S = 24 * 3600.0
MOST_TRIES = 5
"""A code that is older, or had this many wrong tries, is invalid."""
_E = NOTICE_EMAILS.c


@dataclass(frozen=True, slots=True)
class NoticeMessage:
    """A notice in the outbox. tries: how many tries to send it failed."""

    id: int
    queue: NoticeQueue
    notice: Notice
    tries: int
    due_at: float


class NoticeQueries(DatabasePart):
    """One transaction per method."""

    def settings(self, owner: str) -> tuple[NoticeSettings, str]:
        """Return which notices an owner wants, and why the last one was not sent."""
        with self._database.read() as connection:
            row = connection.execute(_select_settings(owner)).one_or_none()
        return (NoticeSettings(), "") if row is None else (_settings_of_row(row), row.trouble)

    def is_confirmed(self, owner: str, address: str) -> bool:
        """Whether an owner has confirmed an e-mail address."""
        with self._database.read() as connection:
            return is_confirmed(connection, owner, address)

    def expect_code(self, owner: str, address: str, code: str, now: float) -> None:
        """Store the code that was sent to an address."""
        with self._database.write() as connection:
            expect(connection, owner, address, code, now)

    def confirm(self, owner: str, code: str, now: float) -> bool:
        """Confirm the address that the code was sent to; return whether the code was right."""
        with self._database.write() as connection:
            return confirm(connection, owner, code, now)

    def save_settings(self, owner: str, settings: NoticeSettings) -> None:
        """Store which notices an owner wants from now on."""
        events = json.dumps(sorted(set(settings.events)))
        values = {"events": events, "webhook": settings.webhook, "email": settings.email, "trouble": ""}
        with self._database.write() as connection:
            forget_others(connection, owner, settings.email)
            connection.execute(delete(NOTICE_WISHES).where(NOTICE_WISHES.c.owner == owner))
            connection.execute(insert(NOTICE_WISHES).values(owner=owner, **values))

    def tell(
        self,
        owner: str,
        event: NoticeEvent,
        now: float,
        *,
        server: str | None = None,
        job: JobRecord | None = None,
        reason: str = "",
    ) -> bool:
        """Write a notice of a server, or of a job whose state is the same; return whether its owner wants it.

        Notify the status cache's `changes` afterwards: the sender of notices listens there.
        """
        of_job = {"job_id": job.id, "name": job.spec.name, "state": job.state} if job else {}
        notice = Notice(id=uuid4().hex, event=event, at=now, server=server, reason=clean(reason), **of_job)
        with self._database.write() as connection:
            return _write(connection, owner, notice)

    # --- for the sender ---------------------------------------------------------------------------

    def queues(self) -> list[NoticeQueue]:
        """Return the owners and channels with something to send."""
        query = select(NOTICES.c.owner, NOTICES.c.channel).distinct()
        with self._database.read() as connection:
            return [(row.owner, row.channel) for row in connection.execute(query)]

    def next(self, queue: NoticeQueue) -> tuple[NoticeMessage, str | None] | None:
        """Return a queue's first message and its target (None: no longer wanted), or None if it is empty."""
        owner, channel = queue
        mine = (NOTICES.c.owner == owner) & (NOTICES.c.channel == channel)
        first = select(NOTICES).where(mine).order_by(NOTICES.c.due_at, NOTICES.c.id).limit(1)
        with self._database.read() as connection:
            row = connection.execute(first).one_or_none()
            settings = connection.execute(_select_settings(owner)).one_or_none()
        if row is None:
            return None
        notice = Notice.model_validate_json(row.body)
        target = None if settings is None else _targets(settings)[channel]
        return NoticeMessage(row.id, queue, notice, row.tries, row.due_at), target

    def done(self, message: NoticeMessage, trouble: str = "") -> None:
        """Delete a message that was sent or given up; show its owner the error until no message waits."""
        owner = message.queue[0]
        with self._database.write() as connection:
            connection.execute(delete(NOTICES).where(NOTICES.c.id == message.id))
            if trouble or not _waiting(connection, message.queue):
                _set_trouble(connection, owner, clean(trouble))

    def again(self, message: NoticeMessage, due_at: float) -> NoticeMessage:
        """Try a message once more at that moment."""
        later = replace(message, tries=message.tries + 1, due_at=due_at)
        values = {"tries": later.tries, "due_at": due_at}
        with self._database.write() as connection:
            connection.execute(update(NOTICES).where(NOTICES.c.id == message.id).values(values))
        return later


def of_transition(
    connection: Connection, job: JobRecord, state: JobState, now: float, reason: str, error: JobError | None
) -> None:
    """Write the notice of a job that enters a state, if its owner wants it."""
    event = _EVENTS.get(state)
    if event is None:
        return
    why = _failure(error) if event is NoticeEvent.FAILED and error is not None else clean(reason)
    notice = Notice(
        id=uuid4().hex, event=event, at=now, job_id=job.id, name=clean(job.spec.name), state=state, reason=why
    )
    _write(connection, job.owner, notice)


def _write(connection: Connection, owner: str, notice: Notice) -> bool:
    row = connection.execute(_select_settings(owner)).one_or_none()
    if row is None or notice.event not in _settings_of_row(row).events:
        return False
    body = notice.model_dump_json()
    channels = [channel for channel, target in _targets(row).items() if target]
    for channel in channels:
        values = {"owner": owner, "channel": channel, "body": body, "tries": 0, "due_at": notice.at}
        if _waiting(connection, (owner, channel)) < MOST_WAITING:
            connection.execute(insert(NOTICES).values(values))
        else:
            left_out = f"{MOST_WAITING} notices wait to be sent by {channel}; later ones were left out"
            _set_trouble(connection, owner, left_out)
    return bool(channels)


def _waiting(connection: Connection, queue: NoticeQueue) -> int:
    mine = (NOTICES.c.owner == queue[0]) & (NOTICES.c.channel == queue[1])
    return connection.execute(select(func.count()).select_from(NOTICES).where(mine)).scalar_one()


def _set_trouble(connection: Connection, owner: str, trouble: str) -> None:
    connection.execute(update(NOTICE_WISHES).where(NOTICE_WISHES.c.owner == owner).values(trouble=trouble))


def _failure(error: JobError) -> str:
    """Return why a job failed, without text of its code: notices leave the cluster."""
    own = _OWN_WORDS.get(error.kind)
    if own is None:
        return clean(error.message)
    return f"rank {error.rank} {own}" if error.rank is not None else f"it {own}"


def _select_settings(owner: str) -> Select[Any]:
    confirmed = exists().where(goes_there()).correlate(NOTICE_WISHES)
    return select(NOTICE_WISHES, confirmed.label("confirmed")).where(NOTICE_WISHES.c.owner == owner)


def _targets(row: AnyRow) -> dict[str, str | None]:
    """Return where notices may be sent, by channel."""
    return {WEBHOOK: row.webhook, EMAIL: row.email if row.confirmed else None}


def _settings_of_row(row: AnyRow) -> NoticeSettings:
    return NoticeSettings(events=json.loads(row.events), webhook=row.webhook, email=row.email)


# E-mail addresses: an owner confirms one with the code that was mailed to it.


def is_confirmed(connection: Connection, owner: str, address: str) -> bool:
    query = select(_E.owner).where(_E.owner == owner, _E.address == address, _E.confirmed)
    return connection.execute(query).first() is not None


def goes_there() -> ColumnElement[Any]:
    """Return the condition on a row of settings under which mails go to its address."""
    settings = NOTICE_WISHES.c
    return and_(_E.owner == settings.owner, _E.address == settings.email, _E.confirmed)


def expect(connection: Connection, owner: str, address: str, code: str, now: float) -> None:
    """Store the code that is on its way to an address; it replaces an earlier one."""
    connection.execute(delete(NOTICE_EMAILS).where(_E.owner == owner))
    values = {"address": address, "confirmed": False, "code_sha256": _hash(code), "sent_at": now, "tries": 0}
    connection.execute(insert(NOTICE_EMAILS).values(owner=owner, **values))


def confirm(connection: Connection, owner: str, code: str, now: float) -> bool:
    """Confirm the address that the code was sent to; return whether it was right. A wrong one counts."""
    mine = NOTICE_EMAILS.update().where(_E.owner == owner)
    fresh = and_(_E.code_sha256 == _hash(code), _E.sent_at > now - CODE_S, _E.tries < MOST_TRIES)
    done = connection.execute(mine.where(fresh).values(confirmed=True, code_sha256=""))
    if not done.rowcount:
        connection.execute(mine.values(tries=_E.tries + 1))
    return bool(done.rowcount)


def forget_others(connection: Connection, owner: str, address: str | None) -> None:
    """Delete an owner's address unless it is this one."""
    mine = delete(NOTICE_EMAILS).where(_E.owner == owner)
    connection.execute(mine if address is None else mine.where(_E.address != address))


def _hash(code: str) -> str:
    return hashlib.sha256(code.encode()).hexdigest()
