"""Whether the GPUs of a notebook server are idle, so that their owner is told, or others get them.

What counts is what the GPUs did: each node's data set agent asks the driver, which knows of every kernel that
ran. Network traffic, an open browser tab or a busy kernel that computes on the CPU count for nothing.

A container that runs keeps the GPUs that it sees. So reclaiming means: the ledger and the engine give
the slots to others, and the server goes on with its kernels and all that they hold. A kernel that held
much GPU memory would then break the next job, so its GPUs stay with it until the memory is freed, and
everybody sees who holds it. The GPUs of a server go together: they were given together, and only all of
them make a slot's number mean the same GPU for the engine and for the ledger.

Nothing is decided without a fresh reading: if a data set agent is unreachable, or has just started, its GPUs
count as used.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from minicluster_hub.jobs.records import ServerRecord

TOLD_S = 300.0
"""Nobody is told later than so long before GPUs go back, also after the service was away."""


@dataclass(frozen=True, slots=True)
class IdleLimits:
    """Times in seconds without use; 0: never.

    held_bytes: memory of one GPU that others can spare: a CUDA context takes some hundred MB of it.
    when_needed: take idle GPUs back from the warning on, if a job waits.
    """

    warn_s: float = 900.0
    reclaim_s: float = 3600.0
    held_bytes: int = 2**30
    when_needed: bool = False


@dataclass(frozen=True, slots=True)
class GpuUse:
    """Of all GPUs of a server: when one of them was last used, and the most memory in use on one."""

    used_at: float
    held_bytes: int


class Step(StrEnum):
    """What is to be done. CALM: they are in use again, so a later warning is a new one."""

    NOTHING = "nothing"
    WARN = "warn"
    CALM = "calm"
    RECLAIM = "reclaim"


def idle_since(server: ServerRecord, use: GpuUse) -> float:
    """Return since when a server's GPUs are idle; what they did before it came is nothing of its own."""
    return max(server.created_at, use.used_at)


def reclaim_at(
    server: ServerRecord, use: GpuUse, limits: IdleLimits, *, needed: bool = False
) -> float | None:
    """Return when idle GPUs go back, None: never."""
    soon = needed and limits.when_needed and limits.warn_s > 0
    after_s = limits.warn_s if soon else limits.reclaim_s
    if after_s <= 0:
        return None
    told_at = server.warned_at + min(TOLD_S, after_s) if server.warned_at is not None else 0.0
    return max(idle_since(server, use) + after_s, told_at)


def next_step(
    server: ServerRecord, use: GpuUse | None, limits: IdleLimits, now: float, *, needed: bool = False
) -> Step:
    """Decide over a server that holds GPUs. use: None if nothing is known of it. needed: a job waits.

    Nobody loses a GPU without having been told: the warning comes first, whatever the times are.
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
