"""Sentences on why one waiting job goes before another under the active policy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from minicluster_hub.scheduling.base import JobView, Snapshot
from minicluster_hub.scheduling.planning.estimates import HOUR_S, likely_remaining_s
from minicluster_hub.scheduling.planning.shares import standings

Why = Callable[[JobView, JobView, Snapshot], str]
"""Takes the other job, one's own job and the snapshot; returns the reason, or "" if there is another one."""


@dataclass(frozen=True, slots=True)
class Planned:
    """snapshot: the last one planned for, without jobs over quota. latest: as in forecast.latest_starts."""

    snapshot: Snapshot
    latest: Mapping[int, float] = field(default_factory=dict[int, float])


def why_before(other: JobView, mine: JobView, snapshot: Snapshot, policy: str) -> str:
    """Say why another job is expected to start before one's own."""
    why = _WHYS.get(policy)
    text = why(other, mine, snapshot) if why is not None else ""
    if text:
        return text
    return "came earlier" if other.submit_order < mine.submit_order else "fits earlier into what becomes free"


def _priority(other: JobView, mine: JobView, _: Snapshot) -> str:
    return f"priority {other.priority}, yours {mine.priority}" if other.priority > mine.priority else ""


def _fair_share(other: JobView, mine: JobView, snapshot: Snapshot) -> str:
    had = standings(snapshot, HOUR_S)
    less = had.get(other.owner, 0.0) < had.get(mine.owner, 0.0)
    return "fair share: its owner has had less than you" if less else ""


def _shortest(other: JobView, mine: JobView, snapshot: Snapshot) -> str:
    theirs_s, mine_s = (likely_remaining_s(job, snapshot.now, HOUR_S) for job in (other, mine))
    return "is expected to be done sooner" if theirs_s < mine_s else ""


def _least_consumed(other: JobView, mine: JobView, snapshot: Snapshot) -> str:
    return "has had less so far" if other.consumed(snapshot.now) < mine.consumed(snapshot.now) else ""


_WHYS: Mapping[str, Why] = {
    "priority": _priority,
    "fair_share": _fair_share,
    "srtf": _shortest,
    "elastic_srtf": _shortest,
    "las": _least_consumed,
}
