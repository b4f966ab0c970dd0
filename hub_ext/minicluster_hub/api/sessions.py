"""Cells of sessions: submit, follow, interrupt; and what their agents ask."""

from __future__ import annotations

import asyncio

from minicluster.wire.sessions import CellProgress, CellSubmit, NextCell, SessionCell
from minicluster_hub.api.tasks import TaskHandler
from minicluster_hub.jobs.orders import TaskEnded
from minicluster_hub.sessions.manager import CellRefused
from minicluster_hub.support.rates import Rate
from minicluster_hub.web.auth import UserHandler
from minicluster_hub.web.errors import ApiError
from minicluster_hub.web.files import FileReply
from minicluster_hub.web.long_polling import HeldHandler
from minicluster_hub.web.route import BYTES, Scope, route


class CellHolder(UserHandler, HeldHandler):
    """Base of handlers whose answer is held until a cell is over."""

    async def until_over(self, job_id: int, cell: SessionCell) -> SessionCell:
        """Return the cell once it is over, or as it is after `orders_hold_s`."""
        sessions, loop = self.context.sessions, asyncio.get_running_loop()
        until = loop.time() + self.context.limits.orders_hold_s
        limits = self.context.limits
        with self.context.streams.one_more(("cells", self.user.name), limits.polls, "polls of cells"):
            async with sessions.changes.listen(job_id) as subscription:
                self._subscription = subscription
                while sessions.is_running(job_id, cell.number) and loop.time() < until and not self._gone:
                    await subscription.wait(until - loop.time())
        return cell if cell.state.over else sessions.cell(job_id, cell.number) or cell


class SessionCellsHandler(CellHolder):
    @route("api/jobs/{job_id}/cells", "A session's newest cell", scope=Scope.READ, answer=SessionCell)
    def get(self, job_id: str) -> None:
        try:
            self.reply(self.context.sessions.newest(self.job_record(job_id, admins=False)))
        except CellRefused as refused:
            raise ApiError(409, refused.code, str(refused), refused.hint) from refused

    @route(
        "api/jobs/{job_id}/cells",
        "Run a cell in a session; the answer is held until the cell is over, or for some time",
        scope=Scope.SUBMIT,
        body=CellSubmit,
        answer=SessionCell,
    )
    async def post(self, job_id: str) -> None:
        request, job = self.parse(CellSubmit), self.job_record(job_id, admins=False)
        try:
            cell = self.context.sessions.submit(job, request)
        except CellRefused as refused:
            raise ApiError(409, refused.code, str(refused), refused.hint) from refused
        self.reply(await self.until_over(job.id, cell))


class SessionCellHandler(CellHolder):
    @route(
        "api/jobs/{job_id}/cells/{number}",
        "A cell of a session; the answer is held until it is over, or for some time",
        scope=Scope.READ,
        answer=SessionCell,
    )
    async def get(self, job_id: str, number: str) -> None:
        job = self.job_record(job_id)
        self.reply(await self.until_over(job.id, self._cell(job.id, number)))

    def _cell(self, job_id: int, number: str) -> SessionCell:
        cell = self.context.sessions.cell(job_id, int(number))
        if cell is None:
            raise ApiError(404, "unknown_cell", f"session {job_id} has no cell {number}")
        return cell


class CellResultHandler(UserHandler, FileReply):
    """What a cell brings, if it is large: bytes that only the owner's kernel unpickles."""

    @route(
        "api/jobs/{job_id}/cells/{number}/result",
        "What a cell of a session brings, if it is no part of the cell's message",
        scope=Scope.READ,
        answer=BYTES,
    )
    async def get(self, job_id: str, number: str) -> None:
        job = self.job_record(job_id, admins=False)
        cell = self.context.sessions.cell(job.id, int(number))
        blob = cell.result_blob if cell is not None else None
        # An agent may report any hash.
        if blob is None or self.context.store.blobs.size(job.owner, blob.sha256) is None:
            raise ApiError(404, "no_result", f"cell {number} of session {job_id} has no large result")
        self.offer_as(f"session-{job.id}-cell-{int(number)}.result")
        await self.send_file(self.context.blobs.path(blob.sha256))


class CellInterruptHandler(UserHandler):
    """Interrupts a cell of a session; may be repeated."""

    @route(
        "api/jobs/{job_id}/cells/{number}/interrupt",
        "End a cell of a session with KeyboardInterrupt; the session stays",
        scope=Scope.SUBMIT,
        status=204,
    )
    def post(self, job_id: str, number: str) -> None:
        job = self.job_record(job_id)
        self.context.sessions.interrupt(job.id, int(number))
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
