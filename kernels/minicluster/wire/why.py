"""Why a job does not get on: the service to people."""

from __future__ import annotations

from .base import Message
from .jobs import JobState
from .stacks import RankStack


class JobWhy(Message):
    """GET api/jobs/ID/why: one sentence, and where each rank is while the job runs."""

    job_id: int
    state: JobState
    sentence: str
    hint: str = ""
    ranks: tuple[RankStack, ...] = ()
