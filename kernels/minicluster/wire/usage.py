"""Who had how much of the cluster."""

from __future__ import annotations

from pydantic import Field

from minicluster.wire.base import Message


class UsageRow(Message):
    """What an owner had, or a group ("": who is in none), in hours of slots, and of those that are GPUs.

    period: which day, week or month (2026-11-22, 2026-W47, 2026-11), "" for all of it.
    shared_gpu_hours: of the GPU-hours, those of people who are in other groups, too, and counted there.
    jobs: how many had any.
    """

    owner: str = ""
    group: str = ""
    period: str = ""
    slot_hours: float = Field(ge=0)
    gpu_hours: float = Field(ge=0)
    server_gpu_hours: float = Field(default=0.0, ge=0)
    shared_gpu_hours: float = Field(default=0.0, ge=0)
    jobs: int = Field(ge=0)


class UsageReport(Message):
    """GET api/usage: from `since` to `until`, in seconds since the epoch; most GPU-hours of a period first.

    by: user or group. period: day, week or month, "" for none. note: how it was counted.
    """

    since: float
    until: float
    by: str = "user"
    period: str = ""
    rows: tuple[UsageRow, ...]
    note: str = ""


# Why one waits, what one's share is, and who goes before: one answer, with nothing in it of others' work.


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
