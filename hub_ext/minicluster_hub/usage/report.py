"""Reports slot-hours and GPU-hours by user or group, and by day, week or month (UTC)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from minicluster.wire import UsageReport, UsageRow
from minicluster_hub.jobs.records import UseRecord

BY = ("user", "group")
PERIODS = ("day", "week", "month")
HOUR_S = 3600.0
_DAY = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class ReportQuery:
    """by: one of BY. period: one of PERIODS; "": the whole time in one row. groups_of: of an owner."""

    since: float
    until: float
    by: str
    period: str
    groups_of: Callable[[str], tuple[str, ...]]


@dataclass(slots=True)
class _Sum:
    slot_hours: float = 0.0
    gpu_hours: float = 0.0
    server_gpu_hours: float = 0.0
    shared_gpu_hours: float = 0.0
    jobs: set[int] = field(default_factory=set[int])


def report(uses: Iterable[UseRecord], asked: ReportQuery, now: float) -> UsageReport:
    """Return the hours between `since` and `until`."""
    sums: dict[tuple[str, str], _Sum] = {}
    shared: set[str] = set()
    for use in uses:
        whose = _whose(use.owner, asked)
        if len(whose) > 1:
            shared.add(use.owner)
        ended_at = min(use.ended_at or now, asked.until)
        for period, hours in _parts(max(use.began_at, asked.since), ended_at, asked.period):
            for name in whose:
                _add(sums.setdefault((period, name), _Sum()), use, hours, shared=len(whose) > 1)
    rows = [_row(name, period, had, asked.by) for (period, name), had in sums.items()]
    rows.sort(key=lambda row: (row.period, -row.gpu_hours, -row.slot_hours, row.owner, row.group))
    return UsageReport(
        since=asked.since,
        until=asked.until,
        by=asked.by,
        period=asked.period,
        rows=tuple(rows),
        note=_note(shared),
    )


def begin(moment: float, period: str) -> float:
    """Return the start of the day, week or month that contains a moment."""
    return _begin(datetime.fromtimestamp(moment, UTC), period).timestamp()


def _whose(owner: str, asked: ReportQuery) -> tuple[str, ...]:
    return (owner,) if asked.by == "user" else asked.groups_of(owner) or ("",)


def _add(had: _Sum, use: UseRecord, hours: float, *, shared: bool) -> None:
    gpu_hours = use.gpus * hours
    had.slot_hours += use.slots * hours
    had.gpu_hours += gpu_hours
    had.server_gpu_hours += gpu_hours if use.server_id is not None else 0.0
    had.shared_gpu_hours += gpu_hours if shared else 0.0
    if use.job_id is not None:
        had.jobs.add(use.job_id)


def _row(name: str, period: str, had: _Sum, by: str) -> UsageRow:
    return UsageRow(
        owner=name if by == "user" else "",
        group=name if by == "group" else "",
        period=period,
        slot_hours=had.slot_hours,
        gpu_hours=had.gpu_hours,
        server_gpu_hours=had.server_gpu_hours,
        shared_gpu_hours=had.shared_gpu_hours,
        jobs=len(had.jobs),
    )


def _note(shared: set[str]) -> str:
    if not shared:
        return ""
    return (
        f"users in several groups: {', '.join(sorted(shared))}; their hours count in each, so the groups "
        "add up to more than the total"
    )


def _parts(since: float, until: float, period: str) -> Iterator[tuple[str, float]]:
    """Yield the periods between two moments, and the hours in each."""
    while since < until:
        at = datetime.fromtimestamp(since, UTC)
        end = min(until, _next(at, period).timestamp()) if period else until
        yield _name(at, period), (end - since) / HOUR_S
        since = end


def _begin(at: datetime, period: str) -> datetime:
    midnight = at.replace(hour=0, minute=0, second=0, microsecond=0)
    back = {"week": midnight.weekday(), "month": midnight.day - 1}.get(period, 0)
    return midnight - back * _DAY


def _next(at: datetime, period: str) -> datetime:
    length = {"week": 7, "month": 31}.get(period, 1)
    return _begin(_begin(at, period) + length * _DAY, period)


def _name(at: datetime, period: str) -> str:
    if period == "week":
        year, week, _ = at.isocalendar()
        return f"{year}-W{week:02}"
    return at.strftime({"day": "%Y-%m-%d", "month": "%Y-%m"}[period]) if period else ""
