"""Idle GPUs of notebook servers: their owner is warned, and later others get them.

Only the use of the GPUs counts: each node's data set agent reads it from the driver, which sees every CUDA
kernel. Network traffic, an open browser tab or a notebook kernel that computes on the CPU do not count.

A running container keeps the GPUs that it sees. So reclaiming means that the ledger and the engine give the
slots to others, while the server continues with its notebook kernels and their memory. If such a kernel held
much GPU memory, it would break the next job. So the server keeps its GPUs until that memory is freed, and
all users see who holds them. All GPUs of a server are reclaimed together: they were given together, and the
engine and the ledger number them alike only as a whole.

Nothing is reclaimed without a recent reading: if a node's agent does not answer, or has just started, its
GPUs count as used.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from minicluster_hub.jobs.records import ServerRecord

TOLD_S = 300.0
"""The shortest time between the warning and the reclaiming, also after an outage of the service."""


@dataclass(frozen=True, slots=True)
class IdleLimits:
    """Times in seconds without use; 0: never.

    held_bytes: memory of a GPU that a server may still hold when others get it: a CUDA context needs some
        hundred MB.
    when_needed: if a job waits, reclaim idle GPUs already `warn_s` after their last use.
    """

    warn_s: float = 900.0
    reclaim_s: float = 3600.0
    held_bytes: int = 2**30
    when_needed: bool = False


@dataclass(frozen=True, slots=True)
class GpuUse:
    """used_at: the last use of any GPU of a server. held_bytes: memory in use on its fullest GPU."""

    used_at: float
    held_bytes: int


class Step(StrEnum):
    """What to do. CALM: the GPUs are in use again; the warning is cancelled."""

    NOTHING = "nothing"
    WARN = "warn"
    CALM = "calm"
    RECLAIM = "reclaim"


def idle_since(server: ServerRecord, use: GpuUse) -> float:
    """Return since when a server's GPUs are idle; use before its start does not count."""
    return max(server.created_at, use.used_at)


def reclaim_at(
    server: ServerRecord, use: GpuUse, limits: IdleLimits, *, needed: bool = False
) -> float | None:
    """Return when idle GPUs are reclaimed; None: never."""
    soon = needed and limits.when_needed and limits.warn_s > 0
    after_s = limits.warn_s if soon else limits.reclaim_s
    if after_s <= 0:
        return None
    told_at = server.warned_at + min(TOLD_S, after_s) if server.warned_at is not None else 0.0
    return max(idle_since(server, use) + after_s, told_at)


def next_step(
    server: ServerRecord, use: GpuUse | None, limits: IdleLimits, now: float, *, needed: bool = False
) -> Step:
    """Return what to do with a server that holds GPUs. use: None: no recent reading. needed: a job waits.

    The warning always comes before the reclaiming, whatever the limits are.
    """
    if use is None or server.reclaimed_at is not None:
        return Step.NOTHING
    since = idle_since(server, use)
    if server.warned_at is not None and since > server.warned_at:
        return Step.CALM
    if server.warned_at is None:
        first_s = min((time_s for time_s in (limits.warn_s, limits.reclaim_s) if time_s > 0), default=None)
        return Step.WARN if first_s is not None and now - since >= first_s else Step.NOTHING
    due = reclaim_at(server, use, limits, needed=needed)
    if due is not None and now >= due and use.held_bytes <= limits.held_bytes:
        return Step.RECLAIM
    return Step.NOTHING
