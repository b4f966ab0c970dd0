"""Machines: what they do now and did before; who held which slots; what a run's ranks used."""

from __future__ import annotations

import asyncio

from minicluster.wire import HISTORY_FIELDS, MOST_HISTORY_POINTS, History, MachineList, RunReadings, Timeline
from minicluster_hub.machines.timeline import TimelineInputs, own_jobs, timeline
from minicluster_hub.web.auth import UserHandler
from minicluster_hub.web.errors import ApiError
from minicluster_hub.web.route import Query, Scope, route

_LATEST = 2**37
_HOUR_S, _DAY_S = 3600, 86_400
_LONGEST_S = 62 * _DAY_S
_MOST_NAMES = 300
_SINCE = "from this time on, in seconds since 1970; an hour before `high` if not given"
_LOW = Query("low", "integer", _SINCE, high=_LATEST)
_DAY_LOW = Query("low", "integer", "the same; a day before `high` if not given", high=_LATEST)
_HIGH = Query("high", "integer", "until this time; now if not given", high=_LATEST)
_POINTS = Query(
    "points", "integer", "about how many intervals to return", default=500, low=1, high=MOST_HISTORY_POINTS
)
_NAME = {"machine_name": r"[^/]{1,255}"}


class _RangeHandler(UserHandler):
    def range(self, before_s: int = _HOUR_S) -> tuple[int, int]:
        """Return the times of the URL's query. Raises ApiError (422)."""
        high = self.query_int("high", int(self.context.clock()) + 1)
        low = self.query_int("low", max(0, high - before_s))
        if low >= high:
            raise ApiError(422, "empty_period", f"the period ends before it begins: {low} to {high}")
        return low, high


class MachinesHandler(UserHandler):
    @route("api/machines", "Machines, and what they do now", scope=Scope.READ, answer=MachineList)
    def get(self) -> None:
        nodes = (node.name for node in self.context.status_cache.node_views())
        self.reply(self.context.machines.shown(nodes))


class MachineHistoryHandler(_RangeHandler):
    @route(
        "api/machines/{machine_name}/history",
        "What a machine did: means and maxima of intervals of time",
        scope=Scope.READ,
        answer=History,
        query=(
            Query("field", "string", "a field of `api/machines`; may be repeated; all if not given"),
            _LOW,
            _HIGH,
            _POINTS,
        ),
        parts=_NAME,
    )
    async def get(self, machine_name: str) -> None:
        low, high = self.range()
        machines, points = self.context.machines, self.query_int("points")
        known = machines.fields(machine_name)
        if not known:
            raise ApiError(404, "unknown_machine", f"there is no history of a machine {machine_name[:80]}")
        fields = tuple(dict.fromkeys(self.get_query_arguments("field"))) or known[:HISTORY_FIELDS]
        unknown = [name for name in fields if name not in known]
        if unknown or len(fields) > HISTORY_FIELDS:
            named = f"field={unknown[0][:40]!r}" if unknown else f"{len(fields)} fields"
            message = f"{named}: want at most {HISTORY_FIELDS} of {', '.join(known)}"
            raise ApiError(422, "invalid", message)
        self.reply(await asyncio.to_thread(machines.history, machine_name, fields, low, high, points))


class TimelineHandler(_RangeHandler):
    """Everybody sees whose job or server held a slot, as on the cluster's page; names only of one's own."""

    @route(
        "api/timeline",
        "Who held which slots, and what waits",
        scope=Scope.READ,
        answer=Timeline,
        query=(_DAY_LOW, _HIGH),
    )
    async def get(self) -> None:
        low, high = self.range(_DAY_S)
        if high - low > _LONGEST_S:
            days = _LONGEST_S // _DAY_S
            raise ApiError(422, "invalid", f"low={low}, high={high}: want at most {days} days")
        context, cache = self.context, self.context.status_cache
        owner = None if self.user.has(Scope.ADMIN) else self.user.name
        uses = await asyncio.to_thread(context.store.usage.since, low)
        jobs = await asyncio.to_thread(context.store.jobs_by_id, own_jobs(uses, owner, _MOST_NAMES))
        inputs = TimelineInputs(
            now=context.clock(),
            low=low,
            high=high,
            nodes=cache.node_views(),
            uses=uses,
            stored=cache.stored,
            waits=cache.waits(),
            names={job.id: job.spec.name for job in jobs},
            owner=owner,
        )
        self.reply(await asyncio.to_thread(timeline, inputs))


class RunReadingsHandler(UserHandler):
    """For the job's owner, and admins."""

    @route(
        "api/runs/{job_id}/readings",
        "What each rank of a run used of CPU, memory and its GPU",
        scope=Scope.READ,
        answer=RunReadings,
        query=(_POINTS,),
    )
    async def get(self, job_id: str) -> None:
        job = self.job_record(job_id)
        ranks = await asyncio.to_thread(self.context.run_readings.read, job.id, self.query_int("points"))
        self.reply(RunReadings(run=job.id, started_at=job.started_at, ranks=ranks))
