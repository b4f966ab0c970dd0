"""Whose address is whose: an owner shows it by the code that a mail brought there."""

from __future__ import annotations

import hashlib
from typing import Any

from sqlalchemy import ColumnElement, Connection, and_, delete, insert, select

from minicluster_hub.store.tables.notices import NOTICE_EMAILS, NOTICE_WISHES

CODE_S = 24 * 3600.0
MOST_TRIES = 5
"""A code that is older, or was guessed at so often, is good for nothing."""

_E = NOTICE_EMAILS.c


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
