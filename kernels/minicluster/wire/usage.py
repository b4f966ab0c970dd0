"""Usage accounting (slots of users and groups); a user's own queue, share and quotas; the home page."""

from __future__ import annotations

from pydantic import Field

from minicluster.wire.base import Message
from minicluster.wire.files.storage import OwnerStorage
from minicluster.wire.jobs import Job, NodeList
from minicluster.wire.runs import Curve, Run


class UsageRow(Message):
    """The usage of a user or a group ("": users without a group), in slot hours and GPU hours.

    period: which day, week or month (2026-11-22, 2026-W47, 2026-11), "" for all of it.
    shared_gpu_hours: the part of members who are in other groups, too, and which is counted there as well.
    jobs: how many jobs used slots.
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


# A user's queue: why jobs wait, the user's share, and which jobs are ahead, without details of others' jobs.


class QueuedJob(Message):
    """A waiting job of the user. Times are seconds since the epoch.

    position: from 1; 0: another queue orders the jobs, and does not tell. latest_start_at: its start if all
    jobs run to their time limits and no new job goes before it; None: not known.
    """

    id: int
    name: str
    position: int
    reason: str
    expected_start_at: float | None = None
    latest_start_at: float | None = None


class Ahead(Message):
    """A job that runs, or is expected to start earlier: its owner and size, but not its content.

    since: when it began to run, or to wait. why: the reason for its position before the user's first job.
    """

    owner: str
    slots: float = Field(ge=0)
    since: float
    why: str = ""


class QuotaUse(Message):
    """A quota of the user. used: its present use; None: it limits each job alone. summary: what it limits."""

    kind: str
    limit: float
    used: float | None = None
    summary: str = ""


class Share(Message):
    """The user's slots, and the user's fair share of them.

    fair_slots: the share of all slots by weight among the users with jobs now and this user. None: the queue
        of others orders the jobs, and has shares of its own.
    used_slot_hours, others_slot_hours: past use, of the user and of the others on average; old use counts
        less. None: nobody else has used slots.
    """

    slots: float
    fair_slots: float | None
    cluster_slots: int
    weight: float = 1.0
    used_slot_hours: float = 0.0
    others_slot_hours: float | None = None
    quotas: tuple[QuotaUse, ...] = ()


class MyQueue(Message):
    """GET api/queue/me. policy: the active one, or the name of the queue of others that orders the jobs.

    before: the jobs that wait ahead of the user's first one. running: the jobs that hold slots now, including
    the user's.
    """

    now: float
    policy: str
    jobs: tuple[QueuedJob, ...] = ()
    share: Share
    before: tuple[Ahead, ...] = ()
    running: tuple[Ahead, ...] = ()


# What a user sees first.


class Home(Message):
    """GET api/home. jobs: the user's that have not ended, the newest first. runs: the newest ones.

    curves: one for each of these runs that logged something, with few points. storage: the user's.
    """

    jobs: tuple[Job, ...] = ()
    nodes: NodeList
    runs: tuple[Run, ...] = ()
    curves: tuple[Curve, ...] = ()
    storage: OwnerStorage
