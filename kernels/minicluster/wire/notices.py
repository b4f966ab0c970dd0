"""Notices by e-mail or webhook: a user's settings, and what is sent."""

from __future__ import annotations

from enum import StrEnum

from pydantic import Field

from minicluster.wire.base import Message


class NoticeEvent(StrEnum):
    """The events with notices: those of jobs and sessions, and of the GPUs of the user's notebook servers."""

    STARTED = "started"
    ENDED = "ended"
    FAILED = "failed"
    PREEMPTED = "preempted"
    GPU_WARNED = "gpu-warned"
    GPU_RECLAIMED = "gpu-reclaimed"
    SESSION_IDLE = "session-idle"


class NoticeSettings(Message):
    """PUT api/notices/me. webhook: the URL to which notices are sent as JSON. None: no notices this way."""

    events: tuple[NoticeEvent, ...] = Field(default=(), max_length=len(NoticeEvent))
    webhook: str | None = Field(default=None, min_length=1, max_length=2048)
    email: str | None = Field(default=None, min_length=3, max_length=254)


class EmailCode(Message):
    """POST api/notices/me/email: the code from a mail confirms the user's address."""

    code: str = Field(pattern=r"^[0-9]{8}$")


class NoticeReport(Message):
    """GET api/notices/me. hosts: allowed for webhooks. emails: whether the cluster sends any.

    email_confirmed: until then, only codes are sent to the address. trouble: why the last notice could not be
    sent, "" if it was.
    """

    wishes: NoticeSettings
    hosts: tuple[str, ...] = ()
    emails: bool = False
    email_confirmed: bool = False
    trouble: str = ""


class Notice(Message):
    """The body of a webhook's request. id: the same if it is sent twice. text: a sentence, for chats.

    job_id, name, state: None and "" in a notice about a server (`server`). url: of the page, ""
    if the cluster's address is not set.
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
