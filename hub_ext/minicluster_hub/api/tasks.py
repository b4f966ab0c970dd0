"""The agents' part of the API. A task's token is valid here and nowhere else."""

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
from minicluster_hub.api.storage.results import keep_result
from minicluster_hub.jobs.orders import TaskEnded
from minicluster_hub.jobs.records import JobRecord, TaskRecord
from minicluster_hub.storage.blobs import BlobFiles
from minicluster_hub.storage.quotas import OverQuota
from minicluster_hub.store import StoreUnavailable
from minicluster_hub.store.jobs.reports import News
from minicluster_hub.support.disk_errors import NotKept
from minicluster_hub.support.rates import Rate
from minicluster_hub.web.base import ServiceHandler
from minicluster_hub.web.context import Context
from minicluster_hub.web.errors import ApiError
from minicluster_hub.web.long_polling import HeldHandler
from minicluster_hub.web.route import OnFollower, Query, Who, route

_OUTPUT = "output"
_WAITS = "The job service could not write the job's output: it waits on the nodes."
_WAITS_FOR_ROOM = "The job service's disk is full: the job's output waits on the nodes until there is space."


class TaskHandler(ServiceHandler):
    """Base of handlers for agents: the token identifies a running task."""

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
        """Refuse a request without a version: agents always send it."""
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
        self.task = self.open_task()

    def open_task(self) -> TaskRecord:
        """Return the token's task as it is now. Raises ApiError (410) if it has ended."""
        try:
            task = self.context.store.task_by_token(self._token_hash)
        except StoreUnavailable:
            self.context.reconciler.reset_silence()
            raise
        if task is None:
            raise _over("this token belongs to no running task")
        return task

    def orders(self, task: TaskRecord) -> TaskOrders:
        """Return the task's orders. Raises ApiError (410) if it has ended."""
        try:
            return self.context.status_cache.orders(task)
        except TaskEnded as error:
            raise _over(str(error)) from error

    def run_order(self) -> RunOrder:
        """Return the order of the task's present attempt. Raises ApiError (409)."""
        run = self.orders(self.task).run
        if run is None:
            raise ApiError(409, "no_attempt", f"task {self.task.id} has no attempt now")
        return run

    def job(self) -> JobRecord:
        """Return the job of the task's present attempt. Raises ApiError (409)."""
        record = self.context.store.job(self.run_order().job_id)
        if record is None:
            raise ApiError(409, "no_attempt", f"task {self.task.id} has no job now")
        return record


def uncounted_bytes(contents: Iterable[bytes]) -> int:
    """Return 15/16 of the size of these bytes in a message, as base64: reading them costs almost nothing."""
    return sum(map(len, contents)) * 5 // 4


class ReportHandler(TaskHandler):
    """Takes an agent's report, which may be repeated."""

    @property
    def rate(self) -> Rate:
        return self.context.limits.report_rate

    def carried_bytes(self, message: BaseModel) -> int:
        if not isinstance(message, TaskReport):
            return 0
        return uncounted_bytes((*(chunk.data for chunk in message.chunks), message.result_data or b""))

    @route("api/tasks/report", "An agent's report", body=TaskReport, answer=ReportAnswer)
    async def post(self) -> None:
        report = self.parse(TaskReport)
        run = self.orders(self.task).run
        self.context.reconciler.heartbeat(self.task.id, report.unreached if _is_of(report, run) else ())
        if report.result is not None and report.result_data is not None and _is_of(report, run):
            await keep_result(self.context, self.job().owner, report.result, report.result_data)
            self.task = self.open_task()
            run = self.orders(self.task).run
        self._check_result(run, report)
        sizes: dict[str, int] = {}
        current = run if _is_of(report, run) else None
        if current is not None:
            sizes = self._store_output(current, report)
            self._receive_records(current, report)
            self.context.status_cache.annotate(current.job_id, " ".join(report.ending), f"end-{self.task.id}")
            own = range(current.first_rank, current.first_rank + current.local_world_size)
            self.context.status_cache.stack_dumps.receive(self.task.id, current.job_id, own, report)
            self.context.run_readings.receive(current.job_id, own, report.readings)
            self._receive_replica(current, report)
        # After the output: `cleared` in the report means that all output is stored.
        accepted = without_missing_files(self.context, current, report)
        if news := self.context.store.report(self.task, accepted, self.context.clock()):
            if run is not None and accepted.artifacts:
                self.context.storage.forget(self.job().owner)
            if run is not None and accepted.snapshots:
                drop_surplus(self.context, run, accepted)
            if news is News.DECISIVE:
                self.context.reconciler.wake()
            else:
                self.context.reconciler.wake_soon()
            if run is not None and report.notes:
                self.context.status_cache.changes.notify(run.job_id)
        self.reply(ReportAnswer(sizes=sizes, missing=missing(report, accepted)))

    def _receive_replica(self, run: RunOrder, report: TaskReport) -> None:
        if run.serve is not None:
            address = self.context.status_cache.engine.task_address(self.task.id, self.task.node)
            self.context.serving.manager.receive(run.job_id, run.attempt, address, report.replica)

    def _check_result(self, run: RunOrder | None, report: TaskReport) -> None:
        """Raise ApiError (409) if the result was not uploaded for the job's owner: a hash grants nothing."""
        if run is None or report.result is None:
            return
        record, result = self.context.store.job(run.job_id), report.result
        if record and self.context.store.blobs.size(record.owner, result.sha256) != result.size_bytes:
            message = f"the result {result.sha256} of {result.size_bytes} bytes is missing"
            raise ApiError(409, "result_missing", message, "PUT it to api/tasks/blobs/SHA256 first")

    def _receive_records(self, run: RunOrder, report: TaskReport) -> None:
        """Pass the ranks' records to the scheduler and the recorder."""
        status_cache, now = self.context.status_cache, self.context.clock()
        news = False
        records = [chunk for chunk in report.chunks if chunk.stream.startswith(("records", "agent-"))]
        for chunk in records:
            news |= status_cache.receive_records(self.task, run, chunk.data, now)
            self.context.sweeps.receive(run.trial, run.job_id, chunk.data)
        if records:
            self.context.recorder.notify(run.job_id)
        if news:
            self.context.reconciler.wake()

    def _store_output(self, run: RunOrder, report: TaskReport) -> dict[str, int]:
        """Append the report's output. If the disk refuses it, the states of the ranks still count.

        Raises NotKept.
        """
        status_cache = self.context.status_cache
        try:
            sizes = self._append(run, report)
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
        """Return which streams are no longer stored, and why."""
        logs, number = self.context.logs, run.restart_count + 1
        cut = [stream for stream in sizes if logs.is_cut(run.job_id, number, stream)]
        long = [stream for stream, size in sizes.items() if size > logs.limit_bytes and stream not in cut]
        parts = (_no_room(cut) if cut else "", _too_long(long, logs.limit_bytes) if long else "")
        return " ".join(filter(None, parts))

    def _append(self, run: RunOrder, report: TaskReport) -> dict[str, int]:
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
        """Count new output in its owner's quota; over the quota, cut these streams. Raises NotKept."""
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
    """Answers when the agent's orders have changed, or after `orders_hold_s`."""

    @property
    def rate(self) -> Rate:
        return self.context.limits.report_rate

    @route(
        "api/tasks/orders",
        "A task's orders; the answer is held while `have` is the newest version",
        answer=TaskOrders,
        query=(Query("have", "string", "the version that the agent has"),),
    )
    async def get(self) -> None:
        notifier, most = self.context.status_cache.orders_notifier, self.context.limits.polls
        with self.context.streams.one_more(("task", self.task.id), most, "polls of this task"):
            orders = await self.held(lambda: self.orders(self.open_task()), notifier, self.task.id)
        self.reply(orders)


def _is_of(report: TaskReport, run: RunOrder | None) -> bool:
    return run is not None and report.attempt == run.attempt


def _streams(run: RunOrder) -> tuple[str, ...]:
    """Return the streams that a task writes: output and displays of its ranks, and one with records."""
    ranks = range(run.first_rank, run.first_rank + run.local_world_size)
    records = "records" if run.group_rank == 0 else f"agent-{run.group_rank}"
    return (*(f"{kind}-{rank}" for rank in ranks for kind in ("rank", "display")), records)


def _too_long(streams: list[str], limit_bytes: int) -> str:
    return (
        f"{', '.join(streams)} printed more than {limit_bytes:,} bytes: further output is not stored. "
        "Print less, or write to a file."
    )


def _no_room(streams: Sequence[str]) -> str:
    return f"Further output of {', '.join(streams)} is not stored: the owner's storage quota is used up."


def _over(message: str) -> ApiError:
    return ApiError(410, "task_over", message, "end everything of this task and exit")


# A report's snapshots and files of the output folder, compared with the files that were uploaded.


def without_missing_files(context: Context, run: RunOrder | None, report: TaskReport) -> TaskReport:
    """Return the report without snapshots and files that were not uploaded: users could not fetch them."""
    if run is None or not (report.snapshots or report.artifacts):
        return report
    own, output = context.blobs.of_job(run.job_id), context.blobs.output_of(run.job_id)
    snapshots = tuple(one for one in report.snapshots if _is_here(own, one.blob))
    here = [one for one in report.artifacts if _is_here(output, one.blob)]
    most = run.output.files * max(1, run.group_world_size)
    artifacts = context.store.artifacts.fitting(run.job_id, here, most) if here else ()
    return report.model_copy(update={"snapshots": snapshots, "artifacts": artifacts})


def missing(report: TaskReport, accepted: TaskReport) -> tuple[str, ...]:
    """Return the files of the output folder that a report names but that were not uploaded."""
    here = {one.blob.sha256 for one in accepted.artifacts}
    return tuple({one.blob.sha256 for one in report.artifacts} - here)


def _is_here(files: BlobFiles, blob: BlobInfo) -> bool:
    return files.size(blob.sha256) == blob.size_bytes


def drop_surplus(context: Context, run: RunOrder, report: TaskReport) -> None:
    """Delete snapshots beyond the number that the job wants; their files after their rows."""
    surplus = context.store.snapshots.prune(run.job_id, report.snapshots[-1].keep)
    files = context.blobs.of_job(run.job_id)
    for sha256 in surplus:
        files.remove(sha256)
