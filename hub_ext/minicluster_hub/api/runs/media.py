"""The pictures, histograms and tables of a run: what there is, and the content of each."""

from __future__ import annotations

import asyncio

from minicluster.wire import MOST, MediaList
from minicluster_hub.api.runs.runs import RunHandlerBase
from minicluster_hub.runs.media import content_of
from minicluster_hub.web.errors import ApiError
from minicluster_hub.web.route import BYTES, Query, Scope, route


class MediaHandler(RunHandlerBase):
    @route(
        "api/runs/{job_id}/media",
        "The pictures, histograms and tables of a run, page by page",
        scope=Scope.READ,
        answer=MediaList,
        query=(
            Query("name", "string", "only of this name; may be repeated"),
            Query("after", "integer", "only those behind this number", high=MOST),
            Query("limit", "integer", "most of one page", default=100, low=1, high=1000),
        ),
    )
    async def get(self, job_id: str) -> None:
        job, names = self.job_record(job_id), self.names()
        after, most = self.query_int("after"), self.query_int("limit")
        self.reply(await self.read_series(job, lambda file: file.media(names, after, most)))


class MediaContentHandler(RunHandlerBase):
    @route(
        "api/runs/{job_id}/media/{number}",
        "The content of one of them: PNG, JPEG, or JSON",
        scope=Scope.READ,
        answer=BYTES,
        parts={"number": r"\d{1,9}"},
    )
    async def get(self, job_id: str, number: str) -> None:
        job = self.job_record(job_id)
        place = await self.read_series(job, lambda file: file.media_place(int(number)))
        if place is None:
            message = f"run {job.id} has no media of the number {number}"
            raise ApiError(404, "unknown_media", message, f"api/runs/{job.id}/media lists those it has")
        logs = self.context.logs
        line = await asyncio.to_thread(
            logs.read, job.id, place.attempt, place.stream, place.offset, place.length
        )
        found = await asyncio.to_thread(content_of, line)
        if found is None:
            message = f"the output of run {job.id} was removed, and its media with it"
            raise ApiError(410, "media_removed", message)
        mime, content = found
        # A content never changes: browsers may keep it, but not for another user.
        self.set_header("Cache-Control", "private, max-age=86400, immutable")
        self.set_header("Content-Type", "application/json" if mime.endswith("+json") else mime)
        self.finish(content)
