"""Notices: who wants which, and an outbox of those that are still to be sent.

A notice is written in the transaction that it tells of, and deleted once it was sent: a service that is
killed in between sends it again with the same id, and none is lost.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from typing import Any
from uuid import uuid4

from sqlalchemy import ColumnElement, Connection, Select, and_, delete, exists, func, insert, select, update

from minicluster.wire import ErrorKind, JobError, JobState, Notice, NoticeEvent, NoticeWishes
from minicluster_hub.jobs.records import JobRecord
from minicluster_hub.store.database import DatabasePart
from minicluster_hub.store.rows import AnyRow, clean
from minicluster_hub.store.tables.notices import NOTICE_EMAILS, NOTICE_WISHES, NOTICES

WEBHOOK, EMAIL = "webhook", "email"
MOST_WAITING = 100
"""Notices of one owner and channel; who makes more of them than can be sent does not fill the database."""
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
"""Of failures whose messages may have words of the user's code or of a container in them."""
NoticeQueue = tuple[str, str]
"""An owner and a channel."""

CODE_S = 24 * 3600.0
MOST_TRIES = 5
"""A code that is older, or was guessed at so often, is good for nothing."""
_E = NOTICE_EMAILS.c


@dataclass(frozen=True, slots=True)
class NoticeMessage:
    """A notice on its way. tries: how often it was tried in vain."""

    id: int
    queue: NoticeQueue
    notice: Notice
    tries: int
    due_at: float


class NoticeQueries(DatabasePart):
    """What the service asks of them: one transaction per method."""

    def wishes(self, owner: str) -> tuple[NoticeWishes, str]:
        """Return what an owner wants to be told of, and why the last notice did not get there."""
        with self._database.read() as connection:
            row = connection.execute(_wishes_of(owner)).one_or_none()
        return (NoticeWishes(), "") if row is None else (_wishes(row), row.trouble)

    def is_confirmed(self, owner: str, address: str) -> bool:
        """Say whether an owner has shown that an e-mail address is the owner's own."""
        with self._database.read() as connection:
            return is_confirmed(connection, owner, address)

    def expect_code(self, owner: str, address: str, code: str, now: float) -> None:
        """Keep the code that was sent to an address."""
        with self._database.write() as connection:
            expect(connection, owner, address, code, now)

    def confirm(self, owner: str, code: str, now: float) -> bool:
        """Confirm the address that the code went to; say whether it did."""
        with self._database.write() as connection:
            return confirm(connection, owner, code, now)

    def wish(self, owner: str, wishes: NoticeWishes) -> None:
        """Keep what an owner wants to be told of from now on."""
        events = json.dumps(sorted(set(wishes.events)))
        values = {"events": events, "webhook": wishes.webhook, "email": wishes.email, "trouble": ""}
        with self._database.write() as connection:
            forget_others(connection, owner, wishes.email)
            connection.execute(delete(NOTICE_WISHES).where(NOTICE_WISHES.c.owner == owner))
            connection.execute(insert(NOTICE_WISHES).values(owner=owner, **values))

    def tell(
        self, owner: str, event: NoticeEvent, now: float, *, server: str | None = None, reason: str = ""
    ) -> bool:
        """Write a notice that is not of a job; return whether its owner wants it.

        Notify the status cache's `changes` afterwards: the sender of notices listens there.
        """
        notice = Notice(id=uuid4().hex, event=event, at=now, server=server, reason=clean(reason))
        with self._database.write() as connection:
            return _write(connection, owner, notice)

    # --- for who sends them ---------------------------------------------------------------------

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
            wishes = connection.execute(_wishes_of(owner)).one_or_none()
        if row is None:
            return None
        notice = Notice.model_validate_json(row.body)
        target = None if wishes is None else _targets(wishes)[channel]
        return NoticeMessage(row.id, queue, notice, row.tries, row.due_at), target

    def done(self, message: NoticeMessage, trouble: str = "") -> None:
        """Forget a message that was sent or given up; show its owner the trouble until nothing waits."""
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


def of_step(
    connection: Connection, job: JobRecord, state: JobState, now: float, reason: str, error: JobError | None
) -> None:
    """Write the notice of a job that comes into a state, if its owner wants it."""
    event = _EVENTS.get(state)
    if event is None:
        return
    why = _failure(error) if event is NoticeEvent.FAILED and error is not None else clean(reason)
    notice = Notice(
        id=uuid4().hex, event=event, at=now, job_id=job.id, name=clean(job.spec.name), state=state, reason=why
    )
    _write(connection, job.owner, notice)


def _write(connection: Connection, owner: str, notice: Notice) -> bool:
    row = connection.execute(_wishes_of(owner)).one_or_none()
    if row is None or notice.event not in _wishes(row).events:
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
    """Say why a job failed without a word of its code: notices leave the cluster."""
    own = _OWN_WORDS.get(error.kind)
    if own is None:
        return clean(error.message)
    return f"rank {error.rank} {own}" if error.rank is not None else f"it {own}"


def _wishes_of(owner: str) -> Select[Any]:
    confirmed = exists().where(goes_there()).correlate(NOTICE_WISHES)
    return select(NOTICE_WISHES, confirmed.label("confirmed")).where(NOTICE_WISHES.c.owner == owner)


def _targets(row: AnyRow) -> dict[str, str | None]:
    """Return where notices may go, by channel."""
    return {WEBHOOK: row.webhook, EMAIL: row.email if row.confirmed else None}


def _wishes(row: AnyRow) -> NoticeWishes:
    return NoticeWishes(events=json.loads(row.events), webhook=row.webhook, email=row.email)


# Whose address is whose: an owner shows it by the code that a mail brought there.


def is_confirmed(connection: Connection, owner: str, address: str) -> bool:
    query = select(_E.owner).where(_E.owner == owner, _E.address == address, _E.confirmed)
    return connection.execute(query).first() is not None


def goes_there() -> ColumnElement[Any]:
    """What has to hold of a row of wishes beside it so that mails go to its address."""
    wishes = NOTICE_WISHES.c
    return and_(_E.owner == wishes.owner, _E.address == wishes.email, _E.confirmed)


def expect(connection: Connection, owner: str, address: str, code: str, now: float) -> None:
    """Keep the code that is on its way to an address; an earlier one is good no more."""
    connection.execute(delete(NOTICE_EMAILS).where(_E.owner == owner))
    values = {"address": address, "confirmed": False, "code_sha256": _hash(code), "sent_at": now, "tries": 0}
    connection.execute(insert(NOTICE_EMAILS).values(owner=owner, **values))


def confirm(connection: Connection, owner: str, code: str, now: float) -> bool:
    """Confirm the address that the code went to; say whether it did. A wrong one counts as a try."""
    mine = NOTICE_EMAILS.update().where(_E.owner == owner)
    fresh = and_(_E.code_sha256 == _hash(code), _E.sent_at > now - CODE_S, _E.tries < MOST_TRIES)
    done = connection.execute(mine.where(fresh).values(confirmed=True, code_sha256=""))
    if not done.rowcount:
        connection.execute(mine.values(tries=_E.tries + 1))
    return bool(done.rowcount)


def forget_others(connection: Connection, owner: str, address: str | None) -> None:
    """Forget an owner's address unless it is this one."""
    mine = delete(NOTICE_EMAILS).where(_E.owner == owner)
    connection.execute(mine if address is None else mine.where(_E.address != address))


def _hash(code: str) -> str:
    return hashlib.sha256(code.encode()).hexdigest()
