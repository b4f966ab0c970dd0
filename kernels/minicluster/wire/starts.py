"""When a job would start that is not submitted: what a dry run and `%distribute doctor` ask."""

from __future__ import annotations

from pydantic import Field

from minicluster.wire.base import Count, Message
from minicluster.wire.jobs import JobSpec, Node

MOST_QUESTIONS = 4


class StartQuestion(Message):
    """POST api/starts: nothing is queued. specs: their payloads need not be there."""

    specs: tuple[JobSpec, ...] = Field(min_length=1, max_length=MOST_QUESTIONS)


class StartForecast(Message):
    """What would become of a job that were submitted now. Times are seconds since the epoch.

    refused: why the service would refuse it, and hint: what to do; "": it would be queued. nodes: how many it
    would have at most; 0: it asks for slots on any nodes. at_once: it would not wait. reason: why it waits.
    expected_start_at, latest_start_at: as in QueuedJob; None: not known.
    """

    refused: str = ""
    hint: str = ""
    nodes: Count = 0
    at_once: bool = False
    reason: str = ""
    expected_start_at: float | None = None
    latest_start_at: float | None = None


class StartAnswer(Message):
    """starts: in the order of the question. nodes: of the cluster, with who holds their slots."""

    now: float
    starts: tuple[StartForecast, ...]
    nodes: tuple[Node, ...] = ()
