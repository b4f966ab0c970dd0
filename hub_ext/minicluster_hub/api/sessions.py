"""Cells of sessions: submit, follow, interrupt; and what their agents ask."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from minicluster.wire import Job, JobState
from minicluster.wire.sessions import (
    SHORT_CELL_S,
    CellProgress,
    CellState,
    CellSubmit,
    NextCell,
    SessionCell,
)
from minicluster_hub.api.events import FeedStream
from minicluster_hub.api.feed import Cursor, JobFeed
from minicluster_hub.api.tasks import TaskHandler
from minicluster_hub.jobs.orders import TaskEnded
from minicluster_hub.jobs.records import JobRecord
from minicluster_hub.sessions.manager import CellRefused
from minicluster_hub.store.jobs.session_cells import CellRecord
from minicluster_hub.support.rates import Rate
from minicluster_hub.web.auth import UserHandler
from minicluster_hub.web.context import Context
from minicluster_hub.web.errors import ApiError
from minicluster_hub.web.files import FileReply
from minicluster_hub.web.long_polling import HeldHandler
from minicluster_hub.web.route import BYTES, STREAM, Query, Scope, route


class CellHolder(UserHandler, HeldHandler):
    """Base of handlers whose answer is held until a cell is over."""

    async def until_over(self, job_id: int, cell: SessionCell, hold_s: float) -> SessionCell:
        """Return the cell once it is over, or as it is after `hold_s`."""
        sessions, loop = self.context.sessions, asyncio.get_running_loop()
        until = loop.time() + hold_s
        limits = self.context.limits
        with self.context.streams.one_more(("cells", self.user.name), limits.polls, "polls of cells"):
            async with sessions.changes.listen(job_id) as subscription:
                self._subscription = subscription
                while sessions.is_running(job_id, cell.number) and loop.time() < until and not self._gone:
                    await subscription.wait(until - loop.time())
        if cell.state.over:
            return cell
        record = sessions.record(job_id, cell.number)
        return cell if record is None else sessions.shown(record)


class SessionCellsHandler(CellHolder):
    @route("api/jobs/{job_id}/cells", "A session's newest cell", scope=Scope.READ, answer=SessionCell)
    def get(self, job_id: str) -> None:
        try:
            self.reply(self.context.sessions.newest(self.job_record(job_id, admins=False)))
        except CellRefused as refused:
            raise ApiError(409, refused.code, str(refused), refused.hint) from refused

    @route(
        "api/jobs/{job_id}/cells",
        "Run a cell in a session; the answer is held until the cell is over, or for a moment",
        scope=Scope.SUBMIT,
        body=CellSubmit,
        answer=SessionCell,
    )
    async def post(self, job_id: str) -> None:
        job = self.job_record(job_id, admins=False)
        request = self.parse(CellSubmit)
        try:
            cell = self.context.sessions.submit(job, request)
        except CellRefused as refused:
            raise ApiError(409, refused.code, str(refused), refused.hint) from refused
        self.reply(await self.until_over(job.id, cell, SHORT_CELL_S))


class SessionCellHandler(CellHolder):
    @route(
        "api/jobs/{job_id}/cells/{cell_id}",
        "A cell of a session; the answer is held until it is over, or for some time",
        scope=Scope.READ,
        answer=SessionCell,
    )
    async def get(self, job_id: str, cell_id: str) -> None:
        job = self.job_record(job_id)
        cell = cell_record(self.context, job.id, cell_id)
        shown, hold_s = self.context.sessions.shown(cell), self.context.limits.orders_hold_s
        self.reply(await self.until_over(job.id, shown, hold_s))


class CellFeed(JobFeed):
    """The events of a session's cell: it is shown like a job of its own."""

    def __init__(self, context: Context, record: JobRecord, cell: CellRecord, after: str) -> None:
        self._cell = cell
        begin = Cursor(attempt=max(1, cell.attempt), offsets=dict(cell.output))
        super().__init__(context, record, Cursor.parse(after) if after else begin)

    def _take(self, record: JobRecord) -> None:
        self._cell = self._context.sessions.record(record.id, self._cell.number) or self._cell
        self._attempts, self._over = max(1, self._cell.attempt), self._cell.state.over

    def _job(self) -> Job | None:
        job = super()._job()
        return None if job is None else as_job(job, self._cell)

    def _sizes(self) -> Mapping[str, int]:
        after = self._context.sessions.record(self.job_id, self._cell.number + 1) if self._over else None
        return super()._sizes() if after is None else after.output


class CellEventsHandler(FeedStream):
    @route(
        "api/jobs/{job_id}/cells/{cell_id}/events",
        "The events of a session's cell until its end, which are those of a job",
        scope=Scope.READ,
        answer=STREAM,
        query=(Query("after", "string", "id of the last event seen; the header Last-Event-ID overrides it"),),
    )
    async def get(self, job_id: str, cell_id: str) -> None:
        context = self.context
        await self.serve(self._feed(job_id, cell_id), context.status_cache.changes, context.sessions.changes)

    def _feed(self, job_id: str, cell_id: str) -> CellFeed:
        # Not in `get`, which would hold the record as long as somebody reads.
        after = self.request.headers.get("Last-Event-ID") or self.get_query_argument("after", "")
        record = self.job_record(job_id)
        return CellFeed(self.context, record, cell_record(self.context, record.id, cell_id), after)


def cell_record(context: Context, job_id: int, cell_id: str) -> CellRecord:
    """Return a cell of a session. Raises ApiError (404)."""
    cell = context.sessions.record(job_id, int(cell_id))
    if cell is None:
        raise ApiError(404, "unknown_cell", f"session {job_id} has no cell {cell_id}")
    return cell


_AS_JOB = {
    CellState.SUCCEEDED: JobState.SUCCEEDED,
    CellState.FAILED: JobState.FAILED,
    CellState.INTERRUPTED: JobState.STOPPED,
}


def as_job(session: Job, cell: CellRecord) -> Job:
    """Return a session's cell as a job, for whoever shows jobs."""
    over = cell.state.over
    shown = {
        "cell_number": cell.number,
        "state": _AS_JOB.get(cell.state, session.state),
        "started_at": cell.submitted_at,
        "ended_at": cell.ended_at,
        "error": cell.error if cell.state is CellState.FAILED else None,
        "reason": "" if over else session.reason,
        "note": "" if over else session.note,
    }
    return session.model_copy(update=shown)


class CellResultHandler(UserHandler, FileReply):
    """What a cell brings, if it is large: bytes that only the owner's kernel unpickles."""

    @route(
        "api/jobs/{job_id}/cells/{cell_id}/result",
        "What a cell of a session brings, if it is no part of the cell's message",
        scope=Scope.READ,
        answer=BYTES,
    )
    async def get(self, job_id: str, cell_id: str) -> None:
        job = self.job_record(job_id, admins=False)
        blob = cell_record(self.context, job.id, cell_id).ending.result_blob
        # An agent may report any hash.
        if blob is None or self.context.store.blobs.size(job.owner, blob.sha256) is None:
            raise ApiError(404, "no_result", f"cell {cell_id} of session {job_id} has no large result")
        self.offer_as(f"session-{job.id}-cell-{int(cell_id)}.result")
        await self.send_file(self.context.blobs.path(blob.sha256))


class CellInterruptHandler(UserHandler):
    """Interrupts a cell of a session; may be repeated."""

    @route(
        "api/jobs/{job_id}/cells/{cell_id}/interrupt",
        "End a cell of a session with KeyboardInterrupt; the session stays",
        scope=Scope.SUBMIT,
        status=204,
    )
    def post(self, job_id: str, cell_id: str) -> None:
        job = self.job_record(job_id)
        self.context.sessions.interrupt(job.id, int(cell_id))
        self.set_status(204)
        self.finish()


class NextCellHandler(TaskHandler, HeldHandler):
    """Takes how a task's ranks ended a cell, and answers with the next one."""

    @property
    def rate(self) -> Rate:
        return self.context.limits.transfer_rate

    @route("api/tasks/cells", "A session's next cell", body=CellProgress, answer=NextCell)
    async def post(self) -> None:
        progress, context = self.parse(CellProgress), self.context
        try:
            run = context.status_cache.present_attempt(self.task)
        except TaskEnded as ended:
            raise ApiError(410, "task_over", str(ended)) from ended
        if run is None or run.attempt != progress.attempt:
            raise ApiError(409, "no_attempt", f"task {self.task.id} does not run attempt {progress.attempt}")
        sessions, loop = context.sessions, asyncio.get_running_loop()
        sessions.receive(run.job_id, run.ranks, progress)
        until = loop.time() + context.limits.orders_hold_s
        with context.streams.one_more(("cells", self.task.id), context.limits.polls, "polls of this task"):
            async with sessions.changes.listen(run.job_id) as subscription:
                self._subscription = subscription
                with context.held_polls.add(subscription):
                    cell = sessions.next_cell(run.job_id, progress.number)
                    while cell is None and loop.time() < until and not self._gone:
                        if context.held_polls.released:
                            break
                        await subscription.wait(until - loop.time())
                        cell = sessions.next_cell(run.job_id, progress.number)
        self.reply(NextCell.model_construct(cell=cell))
