"""Why a job does not get on: the service to people."""

from __future__ import annotations

from minicluster.wire.base import Message
from minicluster.wire.jobs import JobState
from minicluster.wire.stacks import RankStack


class JobWhy(Message):
    """GET api/jobs/ID/why: one sentence, and where each rank is while the job runs."""

    job_id: int
    state: JobState
    sentence: str
    hint: str = ""
    ranks: tuple[RankStack, ...] = ()
