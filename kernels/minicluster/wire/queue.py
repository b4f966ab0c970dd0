"""Why one waits, what one's share is, and who goes before: one answer, with nothing in it of others' work."""

from __future__ import annotations

from pydantic import Field

from minicluster.wire.base import Message


class QueuedJob(Message):
    """One of one's own jobs that waits. Times are seconds since the epoch.

    latest_start_at: by when it starts even if all jobs run to their time limits, unless a job comes that goes
    before it; None: nobody can tell.
    """

    id: int
    name: str
    position: int
    reason: str
    expected_start_at: float | None = None
    latest_start_at: float | None = None


class Ahead(Message):
    """Somebody's job that runs, or is expected to start earlier: whose, and how large, but not what.

    since: when it began to run, or to wait. why: it is before one's own first job, in words.
    """

    owner: str
    slots: int = Field(ge=0)
    since: float
    why: str = ""


class QuotaUse(Message):
    """A limit of one's own, and what of it is used now; None: of each job alone. summary: what it limits."""

    kind: str
    limit: float
    used: float | None = None
    summary: str = ""


class Share(Message):
    """What one holds, and what by right.

    fair_slots: of all slots by weight, among those who have jobs here now, and oneself.
    used_slot_hours, others_slot_hours: what one has had and what others have had on average, where old use
        counts less; None: nobody else has had anything.
    """

    slots: int
    fair_slots: float
    cluster_slots: int
    weight: float = 1.0
    used_slot_hours: float = 0.0
    others_slot_hours: float | None = None
    quotas: tuple[QuotaUse, ...] = ()


class MyQueue(Message):
    """GET api/queue/me. policy: what orders jobs now. before: those who wait before one's own first job.

    running: those who hold slots now, one's own among them.
    """

    now: float
    policy: str
    jobs: tuple[QueuedJob, ...] = ()
    share: Share
    before: tuple[Ahead, ...] = ()
    running: tuple[Ahead, ...] = ()
