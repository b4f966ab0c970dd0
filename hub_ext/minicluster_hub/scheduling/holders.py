"""Sentences on who holds GPUs and until when. Times are UTC: the reader's time zone is not known here."""

from __future__ import annotations

from minicluster_hub.jobs.records import ServerRecord
from minicluster_hub.jobs.slot_numbers import HALF

_DAY_S = 86400


def gpus(count: float) -> str:
    if count == HALF:
        return "half a GPU"
    return f"{count:g} GPU{'' if count == 1 else 's'}" if count else "no GPU"


def held_by(count: float, holder: str) -> str:
    return f"{gpus(count)} {'is' if count in (HALF, 1) else 'are'} held by {holder}"


def server_holder(server: ServerRecord, now: float) -> str:
    """Return "a notebook server of ada until 14:20 UTC"."""
    idle = " and left idle" if server.warned_at is not None else ""
    return f"a notebook server of {server.owner}{_until(server.until, now)}{idle}"


def _until(moment: float | None, now: float) -> str:
    if moment is None:
        return ""
    return f" {until(moment, now)}" if moment > now else ", whose time is over"


def until(moment: float, now: float) -> str:
    """Return "until 14:20 UTC tomorrow"."""
    return f"until {clock_time(moment, now)}"


def clock_time(moment: float, now: float) -> str:
    """Return "14:20 UTC tomorrow"."""
    days = int(moment // _DAY_S - now // _DAY_S)
    later = "" if days == 0 else " tomorrow" if days == 1 else f" in {days} days"
    minutes = int(moment) % _DAY_S // 60
    return f"{minutes // 60:02}:{minutes % 60:02} UTC{later}"
