"""Jobs: submit, list, show, stop; their logs, results and history, and why one is stuck."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from tornado.iostream import StreamClosedError

from minicluster.wire import (
    RESULT_LEFT,
    Job,
    JobList,
    JobSpec,
    JobState,
    JobSubmit,
    JobWhy,
    Message,
    StorageKind,
)
from minicluster_hub.diagnosis.why import explain
from minicluster_hub.jobs.records import JobRecord
from minicluster_hub.jobs.states import JobEvent, TransitionImpossible
from minicluster_hub.scheduling.admission import Submitter, admit
from minicluster_hub.storage.retention import DAY_S
from minicluster_hub.store.jobs.job_rows import row_bytes
from minicluster_hub.web.auth import UserHandler
from minicluster_hub.web.errors import ApiError
from minicluster_hub.web.files import FileReply
from minicluster_hub.web.route import BYTES, OWNER, TEXT, Query, Scope, route

_AT_ONCE = 100
_PIECE_BYTES = 256 * 1024

_BUSY_WITH = {
    JobState.STARTING: "its tasks are starting",
    JobState.STOPPING: "its ranks are being stopped",
    JobState.FAILING: "its ranks are being ended after an error",
    JobState.REQUEUING: "it lost a node, and the rest of the attempt is being ended",
    JobState.YIELDING: "it was preempted, and its newest snapshot is being stored",
    JobState.QUEUED: "it waits for the scheduler",
}


def decided(handler: UserHandler, spec: JobSpec) -> JobSpec:
    """Return a user's spec with its nodes, time limit and image decided. Raises REFUSALS."""
    context, user = handler.context, handler.user
    nodes = context.reservations.open_nodes(context.status_cache.node_views(), context.clock())
    submitter = Submitter(
        context.store.count_open_jobs(user.name),
        user.has(Scope.ADMIN),
        context.accounting.quotas.at_submission(user.name),
    )
    image = context.catalogue.resolve(spec.image)
    return admit(spec, nodes, submitter, context.admission).model_copy(update={"image": image})


class HistoryLine(Message):
    id: int
    at: float
    kind: str
    text: str


class HistoryPage(Message):
    """A page of a job's events in order. more: there is a next page, `after` the last of these."""

    lines: tuple[HistoryLine, ...]
    more: bool = False


def check_not_removed(record: JobRecord, what: str) -> None:
    """Raise ApiError (410) if a job's data was removed. what: "the result", for example."""
    if record.removed_at is None:
        return
    days = (record.removed_at - (record.ended_at or record.removed_at)) / DAY_S
    message = f"{what} of job {record.id} was removed {days:.0f} days after the job's end"
    raise ApiError(410, "removed", message, "run the cell again, or ask an admin to keep job data longer")


class JobsHandler(UserHandler):
    """Lists and submits jobs."""

    @route(
        "api/jobs",
        "Jobs, the newest first; GET api/jobs/{job_id} has an error's full text",
        scope=Scope.READ,
        answer=JobList,
        query=(
            OWNER,
            Query("limit", "integer", "the most jobs to return, the newest", default=100, low=1, high=1000),
            Query("state", "string", "`open`: only jobs that have not ended"),
        ),
    )
    async def get(self) -> None:
        limit = self.query_int("limit")
        open_only, owner = self.get_query_argument("state", "") == "open", self.requested_owner()
        jobs: list[Job] = []
        before: int | None = None
        while left := limit - len(jobs):
            count = min(left, _AT_ONCE)
            records = self.context.store.jobs(owner, open_only=open_only, limit=count, before=before)
            jobs += self.context.status_cache.summaries(records)
            self._charge(sum(map(_hidden_chars, records)) // self.context.limits.answer_bytes)
            if len(records) < count:
                break
            before = records[-1].id
            await asyncio.sleep(0)  # let other requests run
        self.reply(JobList(jobs=tuple(jobs)))

    @route(
        "api/jobs",
        "Submit a job; with the same key again, the answer is the same job (200)",
        scope=Scope.SUBMIT,
        body=JobSubmit,
        answer=Job,
        status=201,
    )
    def post(self) -> None:
        context, request = self.context, self.parse(JobSubmit)
        known = context.store.job_of_key(self.user.name, request.idempotency_key)
        if known is not None:
            self.reply(context.status_cache.job(known))
            return
        if self.user.groups is not None:
            context.store.owners.note(self.user.name, self.user.groups, context.clock())
        admitted = request.model_copy(update={"spec": self._admitted(request.spec)})
        record, new = self._submit(admitted)
        if new:
            context.log.info("job %s: submitted by %s", record.id, record.owner)
            context.status_cache.changes.notify(record.id)
            context.reconciler.wake()
        self.reply(context.status_cache.job(record), 201 if new else 200)

    def _submit(self, request: JobSubmit) -> tuple[JobRecord, bool]:
        """Write the job's row, which counts in the quota like a file. Raises OverQuota, DiskReserved."""
        context, owner = self.context, self.user.name
        with context.storage.reserve(owner, StorageKind.CELLS, row_bytes(request), small=True):
            return context.store.submit(owner, request, context.clock())

    def _admitted(self, spec: JobSpec) -> JobSpec:
        """Return the spec with its nodes decided. Raises ApiError (409), REFUSALS."""
        context, owner = self.context, self.user.name
        if spec.trial is not None:
            raise ApiError(422, "invalid", "spec.trial: only the service makes trials", "POST api/sweeps")
        if spec.serve is not None:
            raise ApiError(422, "invalid", "spec.serve: only the service makes replicas", "POST api/models")
        admitted = decided(self, spec)
        data = context.data_sets.resolved(owner, spec)
        # Renewed, so that none is removed before the job's row names it.
        for blob in context.store.blobs.renew_all(owner, spec.blobs, context.clock()):
            raise ApiError(
                409,
                "payload_missing",
                f"the cell's payload {blob} is missing",
                "PUT it to api/blobs/SHA256 first, then submit again with the same key",
            )
        env = {**context.job_environment, **spec.env}
        return admitted.model_copy(update={"data": data, "env": env})


def _hidden_chars(record: JobRecord) -> int:
    """Return about how many characters of a job are read from the store but not shown in a list."""
    variables = sum(len(name) + len(value) for name, value in record.spec.env.items())
    return variables + sum(map(len, record.spec.parts)) + len(record.error.traceback if record.error else "")


class JobHandler(UserHandler):
    @route("api/jobs/{job_id}", "One job", scope=Scope.READ, answer=Job)
    def get(self, job_id: str) -> None:
        self.reply(self.context.status_cache.job(self.job_record(job_id)))


class JobStopHandler(UserHandler):
    """Stops a job; may be repeated."""

    @route("api/jobs/{job_id}/stop", "Stop a job", scope=Scope.SUBMIT, answer=Job)
    def post(self, job_id: str) -> None:
        record = self.job_record(job_id)
        if not record.state.terminal:
            reason = f"stop requested by {self.user.name}"
            try:
                record = self.context.reconciler.apply_event(record.id, JobEvent.STOP_ASKED, reason)
            except TransitionImpossible:
                record = self.job_record(job_id)  # it ended in the meantime
        self.reply(self.context.status_cache.job(record))


class HistoryHandler(UserHandler):
    @route(
        "api/jobs/{job_id}/history",
        "A job's history, page by page",
        scope=Scope.READ,
        answer=HistoryPage,
        query=(
            Query("after", "integer", "only lines with a higher id", default=0),
            Query("limit", "integer", "the most lines to return, the oldest", default=200, low=1, high=1000),
        ),
        formerly="api/jobs/{job_id}/story",
    )
    def get(self, job_id: str) -> None:
        record, limit = self.job_record(job_id), self.query_int("limit")
        found = self.context.store.events(record.id, self.query_int("after"), limit + 1)
        lines = (HistoryLine(id=one.id, at=one.at, kind=one.kind, text=one.text) for one in found[:limit])
        self.reply(HistoryPage(lines=tuple(lines), more=len(found) > limit))


class LogHandler(UserHandler, FileReply):
    """A rank's output as text, from any byte. Logs are read through their store, not as files."""

    @route(
        "api/jobs/{job_id}/log",
        "A rank's output",
        scope=Scope.READ,
        answer=TEXT,
        query=(
            Query("rank", "integer", "the rank", default=0, high=99_999),
            Query("offset", "integer", "the first byte", default=0),
            Query("limit", "integer", "the most bytes to return; all if not given"),
            Query("attempt", "integer", "the attempt's number; the newest if not given", high=1_000_000),
            Query("download", "string", "any text: browsers save the answer as a file"),
        ),
    )
    async def get(self, job_id: str) -> None:
        record, logs = self.job_record(job_id), self.context.logs
        check_not_removed(record, "the output")
        stream = f"rank-{self.query_int('rank')}"
        attempt, offset = self.query_int("attempt", record.attempts), self.query_int("offset")
        size = logs.size(record.id, attempt, stream)
        end = max(offset, min(size, offset + self.query_int("limit", size)))
        self.set_header("Content-Type", "text/plain; charset=utf-8")
        self.set_header("Minicluster-Offset", str(offset))
        self.set_header("Minicluster-Size", str(size))
        if self.get_query_argument("download", ""):
            self.offer_as(f"job-{record.id}-{stream}.log")
        self.set_header("Content-Length", str(end - offset))
        with suppress(StreamClosedError):
            while offset < end:
                piece = logs.read(record.id, attempt, stream, offset, min(_PIECE_BYTES, end - offset))
                if not piece:
                    raise OSError(f"a log ends {end - offset} bytes early")
                self.write(piece)
                await self.flush()
                offset += len(piece)


class ResultHandler(UserHandler, FileReply):
    """Rank 0's result: bytes that only the owner's kernel unpickles, so admins cannot get them."""

    @route("api/jobs/{job_id}/result", "Rank 0's result", scope=Scope.READ, answer=BYTES)
    async def get(self, job_id: str) -> None:
        record = self.job_record(job_id, admins=False)
        check_not_removed(record, "the result")
        # An earlier release stored any hash that a task reported.
        if record.result is None or self.context.store.blobs.size(record.owner, record.result.sha256) is None:
            message = f"job {record.id} is {record.state} and has no result"
            raise ApiError(404, "no_result", message, self._why_none(record))
        self.offer_as(f"job-{record.id}.result")
        await self.send_file(self.context.blobs.path(record.result.sha256))

    def _why_none(self, record: JobRecord) -> str:
        if not record.state.terminal:
            return "it is there when the job has succeeded"
        notes = (line.text for line in self.context.store.events(record.id) if line.kind == "note")
        return next((text for text in notes if text.startswith(RESULT_LEFT)), "")


class CellHandler(UserHandler, FileReply):
    """A job's payload: bytes that only its owner's kernel unpickles, as with a result."""

    @route(
        "api/jobs/{job_id}/cell",
        "A job's cell with its names, as submitted",
        scope=Scope.READ,
        answer=BYTES,
        query=(Query("part", "string", "the SHA-256 of one of its parts"),),
    )
    async def get(self, job_id: str) -> None:
        record = self.job_record(job_id, admins=False)
        check_not_removed(record, "the cell")
        part = self.get_query_argument("part", record.spec.payload_sha256)
        if part not in record.spec.blobs:
            raise ApiError(404, "unknown_blob", f"{part[:80]} is not a part of the cell of job {record.id}")
        self.offer_as(f"job-{record.id}.cell")
        await self.send_file(self.context.blobs.path(part))


class WhyHandler(UserHandler):
    """Why a job is stuck: from its ranks' stacks while it runs, otherwise from its state."""

    @route(
        "api/jobs/{job_id}/why",
        "Why a job is stuck: one sentence, and where its ranks are",
        scope=Scope.READ,
        answer=JobWhy,
    )
    async def get(self, job_id: str) -> None:
        job = self.context.status_cache.job(self.job_record(job_id))
        if job.state is JobState.RUNNING:
            stacks = await self.context.status_cache.stacks(job.id)
            why = explain(stacks)
            self.reply(
                JobWhy(job_id=job.id, state=job.state, sentence=why.sentence, hint=why.hint, ranks=stacks)
            )
        else:
            hint = job.error.hint if job.error is not None else ""
            self.reply(JobWhy(job_id=job.id, state=job.state, sentence=_state_sentence(job), hint=hint))


def _state_sentence(job: Job) -> str:
    if job.error is not None:
        return f"Job {job.id} is {job.state}: {job.error.message}"
    if job.state is JobState.SUCCEEDED:
        return f"Job {job.id} has succeeded."
    why = job.reason or job.note or _BUSY_WITH.get(job.state, "no reason is known")
    return f"Job {job.id} is {job.state}: {why}."
