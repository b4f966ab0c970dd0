"""GPU-hours by owner or group, and by day, week or month, as JSON and as a CSV file for a spreadsheet."""

from __future__ import annotations

import asyncio
import csv
import io
from datetime import UTC, datetime

from minicluster.wire import UsageReport
from minicluster_hub.usage.report import BY, PERIODS, ReportQuery, begin, report
from minicluster_hub.web.auth import UserHandler
from minicluster_hub.web.base import whole_number
from minicluster_hub.web.errors import ApiError
from minicluster_hub.web.route import Query, Scope, route

_DAY_S = 86_400
_HOURS = ("gpu_hours", "slot_hours", "server_gpu_hours", "jobs")
_SINCE_TEXT = "a day (2026-11-01), or seconds since 1970; 30 days before the end if not given"
_FROM = Query("from", "string", _SINCE_TEXT, high=2**37)
_TO = Query("to", "string", "a day, which is included, or seconds since 1970; now if not given", high=2**37)
_ASKED = (
    Query("by", "string", "`user` (default) or `group`; a user in two groups counts in both"),
    Query("period", "string", "`day`, `week` or `month` (UTC): a row for each; all in one if not given"),
    _FROM,
    _TO,
)


class UsageHandler(UserHandler):
    """The user's own hours; for admins, everybody's."""

    @route(
        "api/usage",
        "Hours of GPUs and slots by owner or group; admins see everybody's",
        scope=Scope.READ,
        answer=UsageReport,
        query=_ASKED,
    )
    async def get(self) -> None:
        self.reply(await self.report())

    async def report(self) -> UsageReport:
        """Return what the URL asks for. Raises ApiError (422)."""
        asked, store, now = self._question(), self.context.store, self.context.clock()
        mine = None if self.user.has(Scope.ADMIN) else self.user.name
        # In a thread: of years there are many rows.
        return await asyncio.to_thread(lambda: report(store.usage.since(asked.since, mine), asked, now))

    def _question(self) -> ReportQuery:
        by, period = self._choice("by", BY) or "user", self._choice("period", PERIODS)
        until = self._moment(_TO, _DAY_S) or int(self.context.clock())
        since = self._moment(_FROM, 0)
        if since is None:
            month_ago = max(0, until - 30 * _DAY_S)
            since = begin(month_ago, period) if period else month_ago
        if since >= until:
            raise ApiError(422, "empty_period", f"the period ends before it begins: {since} to {until}")
        return ReportQuery(since, until, by, period, self.context.store.owners.groups_of)

    def _choice(self, name: str, there: tuple[str, ...]) -> str:
        text = self.get_query_argument(name, "")
        if text and text not in there:
            raise ApiError(422, "invalid", f"{name}={text[:40]!r}: want one of {', '.join(there)}")
        return text

    def _moment(self, query: Query, day_end_s: int) -> int | None:
        """Return a time of the URL's query, a day or seconds since the epoch; None if missing."""
        text = self.get_query_argument(query.name, None)
        if text is None:
            return None
        try:
            day = datetime.strptime(text, "%Y-%m-%d").replace(tzinfo=UTC)
        except ValueError:
            return whole_number(query, text)
        return int(day.timestamp()) + day_end_s


class UsageFileHandler(UsageHandler):
    @route(
        "api/usage.csv",
        "The same as a file for a spreadsheet",
        scope=Scope.READ,
        answer="text/csv",
        query=_ASKED,
    )
    async def get(self) -> None:
        found, text = await self.report(), io.StringIO()
        period = ("period",) if found.period else ()
        names = (
            (*period, "owner", *_HOURS)
            if found.by == "user"
            else (*period, "group", *_HOURS, "shared_gpu_hours")
        )
        table = csv.writer(text)
        table.writerow(names)
        for row in found.rows:
            table.writerow([_harmless(getattr(row, name)) for name in names])
        self.set_header("Content-Type", "text/csv; charset=utf-8")
        self.set_header("Content-Disposition", 'attachment; filename="usage.csv"')
        self.finish(text.getvalue())


def _harmless(value: object) -> object:
    """Return text that spreadsheets do not read as a formula, and hours with three decimals."""
    if isinstance(value, float):
        return f"{value:.3f}"
    return f"'{value}" if isinstance(value, str) and value[:1] in "=+-@\t\r" else value
