"""Who holds GPUs and until when, in words. Times are UTC, since a reader's time zone is not known here."""

from __future__ import annotations

from minicluster_hub.models import ServerRecord

_DAY_S = 86400


def gpus(count: int) -> str:
    return f"{count} GPU{'' if count == 1 else 's'}" if count else "no GPU"


def held_by(count: int, holder: str) -> str:
    return f"{gpus(count)} {'is' if count == 1 else 'are'} held by {holder}"


def server_holder(server: ServerRecord, now: float) -> str:
    """Return "a notebook server of ada until 14:20 UTC"."""
    return f"a notebook server of {server.owner}{_until(server.until, now)}"


def _until(until: float | None, now: float) -> str:
    if until is None:
        return ""
    if until <= now:
        return ", whose time is over"
    days = int(until // _DAY_S - now // _DAY_S)
    later = "" if days == 0 else " tomorrow" if days == 1 else f" in {days} days"
    minutes = int(until) % _DAY_S // 60
    return f" until {minutes // 60:02}:{minutes % 60:02} UTC{later}"
