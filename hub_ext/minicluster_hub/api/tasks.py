"""The agents' own small part of the API: a task's token opens it, and nothing else of the service."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence

from pydantic import BaseModel

from minicluster.wire import (
    FILE_BYTES,
    VERSION_HEADER,
    BlobInfo,
    ReportAnswer,
    RunOrder,
    StreamChunk,
    TaskOrders,
    TaskReport,
)
from minicluster_hub.jobs.orders import TaskOver
from minicluster_hub.jobs.records import JobRecord, TaskRecord
from minicluster_hub.storage.blobs import BlobFiles
from minicluster_hub.storage.quotas import OverQuota
from minicluster_hub.store import StoreUnavailable
from minicluster_hub.support.disk_errors import NotKept
from minicluster_hub.support.rates import Rate
from minicluster_hub.web.base import ServiceHandler
from minicluster_hub.web.context import Context
from minicluster_hub.web.errors import ApiError
from minicluster_hub.web.long_polling import HeldHandler
from minicluster_hub.web.route import OnFollower, Query, Who, route

_OUTPUT = "output"
_WAITS = "The job service could not write the job's output: it waits on the nodes."
_WAITS_FOR_ROOM = "The job service's disk is full: the job's output waits on the nodes until there is room."


class TaskHandler(ServiceHandler):
    """Base: who has the token of a living task is that task."""

    who = Who.TASK
    on_follower = OnFollower.REFER
    task: TaskRecord

    @property
    def rate(self) -> Rate:
        return self.context.limits.transfer_rate

    @property
    def body_limit_bytes(self) -> int:
        return self.context.limits.report_bytes

    @property
    def body_unit_bytes(self) -> int:
        return self.context.limits.report_unit_bytes

    def check_version(self) -> None:
        """Agents always say their version."""
        if VERSION_HEADER not in self.request.headers:
            raise ApiError(426, "wire_version", f"the header {VERSION_HEADER} is missing")
        super().check_version()

    async def identify(self) -> None:
        scheme, _, token = self.request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() != "task" or not token.strip():
            raise ApiError(
                401, "not_authenticated", "want the header `Authorization: task <the task's token>`"
            )
        self._token_hash = hashlib.sha256(token.strip().encode()).hexdigest()
        await self.slow_down((self._token_hash, self.rate), self.rate)
        self.task = self.living_task()

    def living_task(self) -> TaskRecord:
        """Return the token's task as it is now. Raises ApiError (410) when it is over."""
        try:
            task = self.context.store.task_by_token(self._token_hash)
        except StoreUnavailable:
            self.context.reconciler.missed()
            raise
        if task is None:
            raise _over("this token belongs to no task that goes on")
        return task

    def orders(self, task: TaskRecord) -> TaskOrders:
        """Return the task's orders. Raises ApiError (410) when it is over."""
        try:
            return self.context.status_cache.orders(task)
        except TaskOver as error:
            raise _over(str(error)) from error

    def run_order(self) -> RunOrder:
        """Return the attempt that the task is bound to. Raises ApiError (409)."""
        run = self.orders(self.task).run
        if run is None:
            raise ApiError(409, "no_attempt", f"task {self.task.id} has no attempt now")
        return run

    def job(self) -> JobRecord:
        """Return the job that the task is bound to. Raises ApiError (409)."""
        record = self.context.store.job(self.run_order().job_id)
        if record is None:
            raise ApiError(409, "no_attempt", f"task {self.task.id} has no job now")
        return record


def most_of(contents: Iterable[bytes]) -> int:
    """Return fifteen sixteenths of what these bytes take in a message, as base64."""
    return sum(map(len, contents)) * 5 // 4


class ReportHandler(TaskHandler):
    """Takes an agent's report; the same one again does no harm."""

    @property
    def rate(self) -> Rate:
        return self.context.limits.report_rate

    def carried_bytes(self, message: BaseModel) -> int:
        return most_of(chunk.data for chunk in message.chunks) if isinstance(message, TaskReport) else 0

    @route("api/tasks/report", "An agent's report", body=TaskReport, answer=ReportAnswer)
    def post(self) -> None:
        report = self.parse(TaskReport)
        run = self.orders(self.task).run
        self._check_result(run, report)
        sizes: dict[str, int] = {}
        on_it = run if run is not None and report.attempt == run.attempt else None
        self.context.reconciler.heartbeat(self.task.id, report.unreached if on_it else ())
        if on_it is not None:
            sizes = self._keep_or_say(on_it, report)
            self._hear_records(on_it, report)
            self.context.status_cache.annotate(on_it.job_id, " ".join(report.ending), f"end-{self.task.id}")
            own = range(on_it.first_rank, on_it.first_rank + on_it.local_world_size)
            self.context.status_cache.stack_dumps.hear(self.task.id, on_it.job_id, own, report)
        # The output first: `cleared` says that all of it is kept.
        kept = only_those_here(self.context, on_it, report)
        if self.context.store.report(self.task, kept, self.context.clock()):
            if run is not None and kept.artifacts:
                self.context.storage.forget(self.job().owner)
            if run is not None and kept.snapshots:
                drop_surplus(self.context, run, kept)
            self.context.reconciler.wake()
            if run is not None and report.notes:
                self.context.status_cache.changes.notify(run.job_id)
        self.reply(ReportAnswer(sizes=sizes, missing=missing(report, kept)))

    def _check_result(self, run: RunOrder | None, report: TaskReport) -> None:
        """Raise ApiError (409) for a result that nobody brought for the job's owner: a hash opens nothing."""
        if run is None or report.result is None:
            return
        record, told = self.context.store.job(run.job_id), report.result
        if record and self.context.store.blobs.size(record.owner, told.sha256) != told.size_bytes:
            message = f"the result {told.sha256} of {told.size_bytes} bytes is not here"
            raise ApiError(409, "result_missing", message, "PUT it to api/tasks/blobs/SHA256 first")

    def _hear_records(self, run: RunOrder, report: TaskReport) -> None:
        """Take what the ranks logged of their progress, for the scheduler."""
        status_cache, now = self.context.status_cache, self.context.clock()
        news = False
        for chunk in report.chunks:
            if chunk.stream.startswith(("records", "agent-")):
                news |= status_cache.hear_records(self.task, run, chunk.data, now)
        if news:
            self.context.reconciler.wake()

    def _keep_or_say(self, run: RunOrder, report: TaskReport) -> dict[str, int]:
        """Keep the output. When the disk does not take it: what became of the ranks counts all the same."""
        status_cache = self.context.status_cache
        try:
            sizes = self._keep(run, report)
        except NotKept as error:
            status_cache.annotate(run.job_id, _WAITS_FOR_ROOM if error.full else _WAITS, _OUTPUT)
            if self.context.store.report(
                self.task,
                report.model_copy(update={"cleared": 0, "snapshots": (), "artifacts": ()}),
                self.context.clock(),
            ):
                self.context.reconciler.wake()
            raise
        if report.chunks:
            status_cache.annotate(run.job_id, self._lost_output(run, sizes), _OUTPUT)
        return sizes

    def _lost_output(self, run: RunOrder, sizes: Mapping[str, int]) -> str:
        """Say which streams are kept no further, and why."""
        logs, number = self.context.logs, run.restart_count + 1
        cut = [stream for stream in sizes if logs.is_cut(run.job_id, number, stream)]
        long = [stream for stream, size in sizes.items() if size > logs.limit_bytes and stream not in cut]
        told = (_no_room(cut) if cut else "", _too_long(long, logs.limit_bytes) if long else "")
        return " ".join(filter(None, told))

    def _keep(self, run: RunOrder, report: TaskReport) -> dict[str, int]:
        """Append the report's chunks; return the sizes of all streams of this task."""
        logs, number = self.context.logs, run.restart_count + 1
        own = _streams(run)
        for chunk in report.chunks:
            self._check_stream(chunk, own)
        self._make_room(run, number, report.chunks)
        for chunk in report.chunks:
            logs.append(run.job_id, number, chunk.stream, chunk.offset, chunk.data)
        sizes = logs.sizes(run.job_id, number)
        return {stream: sizes.get(stream, 0) for stream in own}

    def _make_room(self, run: RunOrder, number: int, chunks: Sequence[StreamChunk]) -> None:
        """Keep no more of the output of a job whose owner may keep no more. Raises NotKept."""
        logs, storage = self.context.logs, self.context.storage
        streams = {chunk.stream for chunk in chunks if not logs.is_cut(run.job_id, number, chunk.stream)}
        new = sum(FILE_BYTES + len(chunk.data) for chunk in chunks if chunk.stream in streams)
        if not new or storage.counts_output(run.job_id, logs.cost_bytes(run.job_id) + new):
            return
        try:
            storage.keep_output(self.job().owner, run.job_id, logs.cost_bytes(run.job_id) + new)
        except OverQuota as error:
            for stream in streams:
                logs.cut(run.job_id, number, stream)
            note = f"{_no_room(sorted(streams))} {error.message}. {error.hint}."
            self.context.store.note(run.job_id, "note", note, self.context.clock())

    def _check_stream(self, chunk: StreamChunk, own: tuple[str, ...]) -> None:
        if chunk.stream not in own:
            message = f"task {self.task.id} writes {', '.join(own)}, not {chunk.stream}"
            raise ApiError(403, "not_your_stream", message)


class OrdersHandler(TaskHandler, HeldHandler):
    """Answers when the orders are other than those the agent has, or after a while."""

    @property
    def rate(self) -> Rate:
        return self.context.limits.report_rate

    @route(
        "api/tasks/orders",
        "A task's orders, held while `have` is the newest",
        answer=TaskOrders,
        query=(Query("have", "string", "the version that the agent has"),),
    )
    async def get(self) -> None:
        notifier, most = self.context.status_cache.orders_notifier, self.context.limits.polls
        with self.context.streams.one_more(("task", self.task.id), most, "polls of this task"):
            orders = await self.held(lambda: self.orders(self.living_task()), notifier, self.task.id)
        self.reply(orders)


def _streams(run: RunOrder) -> tuple[str, ...]:
    """Return the streams that a task writes: its ranks' output, what they display, and one of records."""
    ranks = range(run.first_rank, run.first_rank + run.local_world_size)
    records = "records" if run.group_rank == 0 else f"agent-{run.group_rank}"
    return (*(f"{kind}-{rank}" for rank in ranks for kind in ("rank", "display")), records)


def _too_long(streams: list[str], limit_bytes: int) -> str:
    return (
        f"{', '.join(streams)} printed more than {limit_bytes:,} bytes: what it prints now is not kept. "
        "Print less, or write to a file."
    )


def _no_room(streams: Sequence[str]) -> str:
    return (
        f"What {', '.join(streams)} of the job print now is not kept: its owner's storage quota is used up."
    )


def _over(message: str) -> ApiError:
    return ApiError(410, "task_over", message, "end everything of this task and exit")


# What a report says of snapshots and of files of the output folder, held against the files that came.


def only_those_here(context: Context, run: RunOrder | None, report: TaskReport) -> TaskReport:
    """Leave out of a report what did not come, so that what is stored can be fetched."""
    if run is None or not (report.snapshots or report.artifacts):
        return report
    own, output = context.blobs.of_job(run.job_id), context.blobs.output_of(run.job_id)
    snapshots = tuple(one for one in report.snapshots if _is_here(own, one.blob))
    here = [one for one in report.artifacts if _is_here(output, one.blob)]
    most = run.output.files * max(1, run.group_world_size)
    artifacts = context.store.artifacts.fitting(run.job_id, here, most) if here else ()
    return report.model_copy(update={"snapshots": snapshots, "artifacts": artifacts})


def missing(told: TaskReport, kept: TaskReport) -> tuple[str, ...]:
    """Return the files of the output folder that were left out of a report: the agent has them still."""
    here = {one.blob.sha256 for one in kept.artifacts}
    return tuple({one.blob.sha256 for one in told.artifacts} - here)


def _is_here(files: BlobFiles, blob: BlobInfo) -> bool:
    return files.size(blob.sha256) == blob.size_bytes


def drop_surplus(context: Context, run: RunOrder, report: TaskReport) -> None:
    """Keep as many snapshots as the job wants; the files go after their rows."""
    surplus = context.store.snapshots.prune(run.job_id, report.snapshots[-1].keep)
    files = context.blobs.of_job(run.job_id)
    for sha256 in surplus:
        files.remove(sha256)
