"""What `%distribute queue` shows: why the user's jobs wait, the user's share, and whose jobs come first."""

from __future__ import annotations

import time
from html import escape

from minicluster.display.tables import Table
from minicluster.display.view import duration
from minicluster.wire import Ahead, MyQueue, QueuedJob, QuotaUse, Share


class Queue:
    """The answer of `%distribute queue`, as text and as HTML."""

    def __init__(self, answer: MyQueue) -> None:
        self._answer = answer
        jobs = tuple(_job(job) for job in answer.jobs)
        self._parts: tuple[tuple[str, Table], ...] = (
            ("", Table(_JOB_HEADS, jobs, "None of your jobs waits.")),
            *_people("Before your first job:", answer.before, answer),
            *_people("Who holds slots now:", answer.running, answer),
        )

    def __repr__(self) -> str:
        tables = "\n\n".join(f"{title}\n{table!r}".strip() for title, table in self._parts)
        return f"{share_text(self._answer)}\n\n{tables}"

    def _repr_html_(self) -> str:
        tables = "".join(
            f"<p><b>{escape(title)}</b></p>{table._repr_html_()}" if title else table._repr_html_()
            for title, table in self._parts
        )
        return f"<p>{escape(share_text(self._answer))}</p>{tables}"


_JOB_HEADS = ("place", "job", "name", "expected start", "at the latest", "why it waits")


def share_text(answer: MyQueue) -> str:
    """Describe the user's share in text."""
    share = answer.share
    parts = [
        _held(share),
        _had(share),
        *(_quota(quota) for quota in share.quotas),
        f"Jobs are ordered by {answer.policy}.",
    ]
    return " ".join(parts)


def _held(share: Share) -> str:
    held = f"You hold {share.slots:g} of {share.cluster_slots} slots"
    if share.fair_slots is None:
        return f"{held}."
    return f"{held}; {_number(share.fair_slots)} would be your fair share now."


def _had(share: Share) -> str:
    had = f"You have had {_number(share.used_slot_hours)} slot-hours lately"
    if share.others_slot_hours is None:
        return f"{had}, others none."
    return f"{had}, others {_number(share.others_slot_hours)} on average."


def _quota(quota: QuotaUse) -> str:
    used = "" if quota.used is None else f"{_number(quota.used)} of "
    return f"Quota of {quota.kind}: {used}{_number(quota.limit)} ({quota.summary})."


def _job(job: QueuedJob) -> tuple[str, ...]:
    expected, latest = _clock(job.expected_start_at), _clock(job.latest_start_at)
    return (str(job.position or ""), str(job.id), job.name, expected, latest, job.reason)


def _people(title: str, people: tuple[Ahead, ...], answer: MyQueue) -> tuple[tuple[str, Table], ...]:
    rows = tuple(
        (one.owner, f"{one.slots:g}", duration(max(0.0, answer.now - one.since)), one.why) for one in people
    )
    return ((title, Table(("owner", "slots", "for", "why"), rows, "")),) if rows else ()


def _clock(moment: float | None) -> str:
    return "" if moment is None else time.strftime("%a %H:%M", time.localtime(moment))


def _number(value: float) -> str:
    return f"{round(value, 2):.3g}" if value < 1000 else f"{value:.0f}"
