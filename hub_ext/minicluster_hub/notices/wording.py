"""A notice as a sentence, for e-mails and chats."""

from __future__ import annotations

from minicluster.wire import JobState, Notice, NoticeEvent


def sentence(notice: Notice) -> str:
    """Return what happened, and why."""
    happened = _happened(notice)
    return f"{happened}: {notice.reason}." if notice.reason else f"{happened}."


def headline(notice: Notice) -> str:
    """Return what happened, without names that a user chose."""
    return _happened(notice.model_copy(update={"name": "cell", "server": ""}))


def _happened(notice: Notice) -> str:
    if notice.job_id is None:
        server = f"notebook server {notice.server!r}" if notice.server else "notebook server"
        verb = "were taken back" if notice.event is NoticeEvent.GPU_RECLAIMED else "are idle"
        return f"The GPUs of your {server} {verb}"
    job = f"Job {notice.job_id}" if notice.name == "cell" else f"Job {notice.job_id} ({notice.name})"
    match notice.event:
        case NoticeEvent.STARTED:
            return f"{job} has started"
        case NoticeEvent.FAILED:
            return f"{job} has failed"
        case NoticeEvent.PREEMPTED:
            return f"{job} was preempted and waits again"
        case NoticeEvent.SESSION_IDLE:
            return f"{job} is a session that runs no cell"
        case _:
            return f"{job} was stopped" if notice.state == JobState.STOPPED else f"{job} has succeeded"
