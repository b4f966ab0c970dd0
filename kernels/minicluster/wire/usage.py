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
