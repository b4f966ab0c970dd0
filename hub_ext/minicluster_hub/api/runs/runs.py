"""Runs: the list, what is remembered of one, its labels, and the values that its ranks logged."""

from __future__ import annotations

import asyncio
import math
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import TypeVar

from tornado.iostream import StreamClosedError

from minicluster.wire import (
    MOST_POINTS,
    MOST_RUNS,
    MOST_SERIES,
    Curve,
    CurveList,
    JobState,
    Run,
    RunDetails,
    RunLabels,
    RunList,
    SeriesList,
    TagCounts,
)
from minicluster_hub.jobs.records import JobRecord
from minicluster_hub.runs.export import as_csv, as_json
from minicluster_hub.runs.result_names import result_names
from minicluster_hub.runs.series import SeriesFile, Span
from minicluster_hub.runs.views import details_message, metric_names, run_message
from minicluster_hub.store.jobs.runs import RunQuery, RunRecord
from minicluster_hub.web.auth import UserHandler
from minicluster_hub.web.errors import ApiError
from minicluster_hub.web.route import OWNER, TEXT, Query, Scope, route

_TAGS = 200
_TEXT_CHARS = 200
_NAMES = Query("name", "string", "a metric's name; may be repeated")
_SPAN = (
    Query("axis", "string", "what low and high are: `step` (default), or `time` in seconds since the epoch"),
    Query("low", "number", "the range's beginning; all if not given"),
    Query("high", "number", "the range's end"),
    Query("points", "integer", "about how many points a curve has", default=1000, low=1, high=MOST_POINTS),
)
_FORMATS: dict[str, tuple[str, Callable[..., Iterator[str]]]] = {
    "csv": ("text/csv; charset=utf-8", as_csv),
    "json": ("application/json", as_json),
}
T = TypeVar("T")


def _sweep_of(job: JobRecord) -> int | None:
    return job.spec.trial.sweep if job.spec.trial is not None else None


class RunHandlerBase(UserHandler):
    """What the handlers of runs share."""

    def run_of(self, job: JobRecord) -> Run:
        return self.runs_of([job])[0]

    def runs_of(self, jobs: Sequence[JobRecord]) -> tuple[Run, ...]:
        """Return jobs as runs, in their order."""
        shown = self.context.status_cache.summaries(jobs)
        records = self.context.store.runs.records([job.id for job in jobs])
        return tuple(
            run_message(job, records.get(job.id, RunRecord(job.id)), _sweep_of(record))
            for job, record in zip(shown, jobs, strict=True)
        )

    async def read_series(self, job: JobRecord, read: Callable[[SeriesFile], T]) -> T:
        """Return what `read` finds in a run's series, brought up to date. Raises ApiError (503)."""
        try:
            file = await self.context.recorder.current(job.id)
            return await asyncio.to_thread(read, file)
        except sqlite3.Error as error:
            message = f"the metrics of job {job.id} cannot be read: {error}"
            raise ApiError(
                503, "series_unreadable", message, "try again; tell an admin if it stays"
            ) from error

    def span(self) -> Span:
        axis = self.get_query_argument("axis", "step")
        if axis not in ("step", "time"):
            raise ApiError(422, "invalid", f"axis: {axis!r} is neither `step` nor `time`")
        return Span(axis, self._number("low"), self._number("high"))

    def names(self) -> list[str]:
        names = self.get_query_arguments("name", strip=False)
        if len(names) > MOST_SERIES:
            raise ApiError(422, "invalid", f"name: {len(names)} metrics at once; at most {MOST_SERIES}")
        return names

    def _number(self, name: str) -> float | None:
        text = self.get_query_argument(name, None)
        if text is None:
            return None
        with suppress(ValueError):
            if math.isfinite(number := float(text)):
                return number
        raise ApiError(422, "invalid", f"{name}: {text[:50]!r} is not a number")


class RunsHandler(RunHandlerBase):
    @route(
        "api/runs",
        "Runs, page by page",
        scope=Scope.READ,
        answer=RunList,
        query=(
            OWNER,
            Query("search", "string", "part of the name, the note or a tag"),
            Query("state", "string", "only runs in this state; may be repeated"),
            Query("tag", "string", "only runs with this tag"),
            Query("favourite", "string", "any text: only favourites"),
            Query("sort", "string", "created (default), name, state, duration, owner, or a metric's name"),
            Query("order", "string", "desc (default) or asc"),
            Query("limit", "integer", "runs of a page", default=100, low=1, high=1000),
            Query("offset", "integer", "runs before the page", default=0, high=10_000_000),
        ),
    )
    async def get(self) -> None:
        query = RunQuery(
            owner=self.requested_owner(),
            search=self.get_query_argument("search", "")[:_TEXT_CHARS],
            states=self._states(),
            tag=self.get_query_argument("tag", "")[:_TEXT_CHARS],
            favourite=bool(self.get_query_argument("favourite", "")),
            sort=self.get_query_argument("sort", "created")[:_TEXT_CHARS],
            descending=self.get_query_argument("order", "desc") != "asc",
            limit=self.query_int("limit"),
            offset=self.query_int("offset"),
        )
        jobs, total = await asyncio.to_thread(self.context.store.runs.page, query)
        # Whoever asks at a run's end wants its last values; of those that go on, they come soon.
        await self.context.recorder.catch_up(job.id for job in jobs if job.state.terminal)
        runs = self.runs_of(jobs)
        self.reply(RunList(runs=runs, total=total, metrics=metric_names(runs)))

    def _states(self) -> tuple[JobState, ...]:
        wanted = self.get_query_arguments("state")
        try:
            return tuple(JobState(state) for state in wanted)
        except ValueError:
            known = ", ".join(state.value for state in JobState)
            raise ApiError(422, "invalid", f"state: there are {known}") from None


class RunHandler(RunHandlerBase):
    @route("api/runs/{job_id}", "All that is remembered of a run", scope=Scope.READ, answer=RunDetails)
    async def get(self, job_id: str) -> None:
        job = self.job_record(job_id)
        await self.context.recorder.catch_up([job.id])
        record = self.context.store.runs.records([job.id], origins=True).get(job.id, RunRecord(job.id))
        run = run_message(self.context.status_cache.summaries([job])[0], record, _sweep_of(job))
        image = self.context.catalogue.name_of(job.spec.image)
        details = details_message(job, run, record, image)
        if job.result is not None:
            names = result_names(self.context.blobs.path(job.result.sha256))
            details = details.model_copy(update={"result_names": names})
        self.reply(details)


class RunLabelsHandler(RunHandlerBase):
    @route(
        "api/runs/{job_id}/labels",
        "Change tags, note or favourite of a run of your own",
        scope=Scope.SUBMIT,
        body=RunLabels,
        answer=Run,
    )
    def put(self, job_id: str) -> None:
        job, labels = self.job_record(job_id, admins=False), self.parse(RunLabels)
        self.context.store.runs.label(job.id, labels)
        self.context.status_cache.changes.notify(job.id)
        self.reply(self.run_of(job))


class RunTagsHandler(UserHandler):
    @route("api/run-tags", "The tags of runs", scope=Scope.READ, answer=TagCounts, query=(OWNER,))
    def get(self) -> None:
        self.reply(TagCounts(tags=tuple(self.context.store.runs.tags(self.requested_owner(), _TAGS))))


class SeriesHandler(RunHandlerBase):
    @route("api/runs/{job_id}/series", "Which metrics a run has", scope=Scope.READ, answer=SeriesList)
    async def get(self, job_id: str) -> None:
        found = await self.read_series(
            self.job_record(job_id), lambda file: SeriesList(series=file.series(), dropped=file.dropped())
        )
        self.reply(found)


class CurvesHandler(RunHandlerBase):
    @route(
        "api/runs/{job_id}/curves",
        "Metrics of a run, at the resolution of a picture",
        scope=Scope.READ,
        answer=CurveList,
        query=(
            _NAMES,
            Query("rank", "integer", "only of this rank; by default of the lowest that logs it", high=99_999),
            *_SPAN,
        ),
    )
    async def get(self, job_id: str) -> None:
        job, names, span, most = self.job_record(job_id), self.names(), self.span(), self.query_int("points")
        rank = self.query_int("rank", -1)
        curves = await self.read_series(
            job, lambda file: file.curves(job.id, names, span, most, None if rank < 0 else rank)
        )
        self.reply(CurveList(curves=tuple(curves), started_at={job.id: job.started_at}))


class RunCurvesHandler(RunHandlerBase):
    @route(
        "api/run-curves",
        "The same metrics of several runs, for one picture",
        scope=Scope.READ,
        answer=CurveList,
        query=(Query("run", "integer", "a run; may be repeated"), _NAMES, *_SPAN),
    )
    async def get(self) -> None:
        jobs, names, span, most = self._jobs(), self.names(), self.span(), self.query_int("points")
        curves: list[Curve] = []
        for job in jobs:
            curves += await self.read_series(job, lambda file, of=job: file.curves(of.id, names, span, most))
        self.reply(CurveList(curves=tuple(curves), started_at={job.id: job.started_at for job in jobs}))

    def _jobs(self) -> list[JobRecord]:
        wanted = list(dict.fromkeys(self.get_query_arguments("run")))
        if len(wanted) > MOST_RUNS:
            raise ApiError(422, "invalid", f"run: {len(wanted)} runs at once; at most {MOST_RUNS}")
        wrong = next((one for one in wanted if not (one.isdecimal() and len(one) <= 15)), None)
        if wrong is not None:
            raise ApiError(422, "invalid", f"run: {wrong[:50]!r} is not the number of a run")
        return [self.job_record(one) for one in wanted]


class PointsHandler(RunHandlerBase):
    @route(
        "api/runs/{job_id}/points",
        "All points of a run, as a file",
        scope=Scope.READ,
        answer=TEXT,
        query=(_NAMES, Query("format", "string", "csv (default) or json")),
    )
    async def get(self, job_id: str) -> None:
        job, names, form = self.job_record(job_id), self.names(), self.get_query_argument("format", "csv")
        if form not in _FORMATS:
            raise ApiError(422, "invalid", f"format: {form[:20]!r} is neither `csv` nor `json`")
        media_type, written = _FORMATS[form]
        pieces = await self.read_series(job, lambda file: written(file.points(names)))
        self.set_header("Content-Type", media_type)
        self.set_header("Content-Disposition", f'attachment; filename="run-{job.id}.{form}"')
        with suppress(StreamClosedError):
            while (piece := await asyncio.to_thread(next, pieces, None)) is not None:
                self.write(piece)
                await self.flush()
