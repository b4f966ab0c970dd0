"""Notices by e-mail or webhook: what somebody wants to be told of, and what is sent."""

from __future__ import annotations

from enum import StrEnum

from pydantic import Field

from minicluster.wire.base import Message


class NoticeEvent(StrEnum):
    """What there are notices of: of jobs, and of the GPUs of one's notebook server."""

    STARTED = "started"
    ENDED = "ended"
    FAILED = "failed"
    PREEMPTED = "preempted"
    GPU_WARNED = "gpu-warned"
    GPU_RECLAIMED = "gpu-reclaimed"


class NoticeSettings(Message):
    """PUT api/notices/me. webhook: a URL that is sent each notice as JSON. None: nothing by this way."""

    events: tuple[NoticeEvent, ...] = Field(default=(), max_length=len(NoticeEvent))
    webhook: str | None = Field(default=None, min_length=1, max_length=2048)
    email: str | None = Field(default=None, min_length=3, max_length=254)


class EmailCode(Message):
    """POST api/notices/me/email: the code that a mail brought shows that its address is one's own."""

    code: str = Field(pattern=r"^[0-9]{8}$")


class NoticeReport(Message):
    """GET api/notices/me. hosts: those that webhooks may go to; emails: whether there are any here.

    email_confirmed: before, nothing but a code goes to the address. trouble: why the last notice did not get
    there, "" if it did.
    """

    wishes: NoticeSettings
    hosts: tuple[str, ...] = ()
    emails: bool = False
    email_confirmed: bool = False
    trouble: str = ""


class Notice(Message):
    """What a webhook is sent. id: the same if it is sent twice. text: all of it in a sentence, for chats.

    job_id, name, state: None and "" if it tells of a notebook server, `server`. url: of the page, "" if the
    cluster does not know its own address.
    """

    id: str
    event: NoticeEvent
    at: float
    job_id: int | None = None
    name: str = ""
    state: str = ""
    server: str | None = None
    reason: str = ""
    url: str = ""
    text: str = ""
