"""Jobs: submit, list, look, stop; their logs and results."""

from __future__ import annotations

import asyncio

from minicluster.wire import RESULT_LEFT, Job, JobList, JobSpec, JobState, JobSubmit, JobWhy, StorageKind
from minicluster_hub.api.messages import HistoryLine, JobHistory, check_kept
from minicluster_hub.api.storage.datasets import refused as data_refused
from minicluster_hub.datasets.manager import DataSetRefused
from minicluster_hub.diagnosis.why import explain
from minicluster_hub.images.catalogue import ImageNotAllowed
from minicluster_hub.jobs.records import JobRecord, NodeView
from minicluster_hub.jobs.states import JobEvent, TransitionImpossible
from minicluster_hub.scheduling.admission import JobRefused, Submitter, admit
from minicluster_hub.store.jobs.job_rows import spec_bytes
from minicluster_hub.web.auth import UserHandler
from minicluster_hub.web.errors import ApiError
from minicluster_hub.web.files import FileReply
from minicluster_hub.web.route import Scope

_AT_ONCE = 100

_ON_ITS_WAY = {
    JobState.STARTING: "its tasks are starting",
    JobState.STOPPING: "its ranks are being stopped",
    JobState.FAILING: "its ranks are being ended after an error",
    JobState.REQUEUING: "it lost a node, and what is left of the attempt is being ended",
    JobState.YIELDING: "it makes room for others, and its newest snapshot is being kept",
    JobState.QUEUED: "it waits for the scheduler",
}


def _read_chars(record: JobRecord) -> int:
    """Return how much of a job is read and not shown in a list, about."""
    variables = sum(len(name) + len(value) for name, value in record.spec.env.items())
    return variables + sum(map(len, record.spec.parts)) + len(record.error.traceback if record.error else "")


class JobsHandler(UserHandler):
    """The list, and its new entries."""

    async def get(self) -> None:
        limit = self.query_int("limit", 100, low=1, high=1000)
        open_only, owner = self.get_query_argument("state", "") == "open", self.owner_asked()
        jobs: list[Job] = []
        before: int | None = None
        while left := limit - len(jobs):
            count = min(left, _AT_ONCE)
            records = self.context.store.jobs(owner, open_only=open_only, limit=count, before=before)
            jobs += self.context.status_cache.summaries(records)
            self._charge(sum(map(_read_chars, records)) // self.context.limits.answer_bytes)
            if len(records) < count:
                break
            before = records[-1].id
            await asyncio.sleep(0)  # others' requests come between
        self.reply(JobList(jobs=tuple(jobs)))

    def post(self) -> None:
        request = self.parse(JobSubmit)
        known = self.context.store.job_of_key(self.user.name, request.idempotency_key)
        if known is not None:
            self.reply(self.context.status_cache.job(known))
            return
        if self.user.groups is not None:
            self.context.store.owners.note(self.user.name, self.user.groups, self.context.clock())
        decided = request.model_copy(update={"spec": self._admitted(request.spec)})
        record, new = self._kept(decided)
        if new:
            self.context.log.info("job %s: submitted by %s", record.id, record.owner)
            self.context.status_cache.changes.notify(record.id)
            self.context.reconciler.wake()
        self.reply(self.context.status_cache.job(record), 201 if new else 200)

    def _kept(self, request: JobSubmit) -> tuple[JobRecord, bool]:
        """Write the job's row, which counts as a file does. Raises OverQuota, DiskReserved."""
        storage, owner, size_bytes = self.context.storage, self.user.name, spec_bytes(request.spec)
        with storage.reserve(owner, StorageKind.CELLS, size_bytes, small=True):
            return self.context.store.submit(owner, request, self.context.clock())

    def _admitted(self, spec: JobSpec) -> JobSpec:
        """Return the spec with its nodes decided. Raises ApiError (409, 422)."""
        context, owner = self.context, self.user.name
        try:
            chosen: dict[str, object] = {"image": context.catalogue.resolve(spec.image)}
            decided = admit(spec, self._open_nodes(), self._submitter(), context.admission)
            chosen["data"] = context.data_sets.resolved(owner, spec)
        except DataSetRefused as error:
            raise data_refused(error) from error
        except JobRefused as refused:
            raise ApiError(422, refused.code, refused.message, refused.hint) from refused
        except ImageNotAllowed as refused:
            raise ApiError(422, "image_not_allowed", str(refused), refused.hint) from refused
        # Renewed: none goes before the job names it.
        for blob in context.store.blobs.renew_all(owner, spec.blobs, context.clock()):
            raise ApiError(
                409,
                "payload_missing",
                f"the cell's payload {blob} is not here",
                "PUT it to api/blobs/SHA256 first, then submit again with the same key",
            )
        chosen["env"] = {**context.job_environment, **spec.env}
        return decided.model_copy(update=chosen)

    def _open_nodes(self) -> tuple[NodeView, ...]:
        reservations, context = self.context.reservations, self.context
        return reservations.open_nodes(context.status_cache.node_views(), context.clock())

    def _submitter(self) -> Submitter:
        name, context = self.user.name, self.context
        return Submitter(
            context.store.count_open_jobs(name),
            self.user.has(Scope.ADMIN),
            context.accounting.quotas.at_door(name),
        )


class JobHandler(UserHandler):
    """One job."""

    def get(self, job_id: str) -> None:
        self.reply(self.context.status_cache.job(self.job_record(job_id)))


class StopHandler(UserHandler):
    """Stops a job; again, or after its end, it changes nothing."""

    def post(self, job_id: str) -> None:
        record = self.job_record(job_id)
        if not record.state.terminal:
            record = self._ask(record)
        self.reply(self.context.status_cache.job(record))

    def _ask(self, record: JobRecord) -> JobRecord:
        reason = f"stop asked for by {self.user.name}"
        try:
            return self.context.reconciler.happened(record.id, JobEvent.STOP_ASKED, reason)
        except TransitionImpossible:
            return self.job_record(str(record.id))  # it ended in the meantime


class HistoryHandler(UserHandler):
    """What happened to a job so far, page by page."""

    def get(self, job_id: str) -> None:
        record = self.job_record(job_id)
        limit = self.query_int("limit", 200, low=1, high=1000)
        lines = self.context.store.events(record.id, self.query_int("after", 0), limit + 1)
        told = (HistoryLine(id=line.id, at=line.at, kind=line.kind, text=line.text) for line in lines[:limit])
        self.reply(JobHistory(lines=tuple(told), more=len(lines) > limit))


class LogHandler(UserHandler, FileReply):
    """A rank's output as text, from any byte on."""

    async def get(self, job_id: str) -> None:
        record = self.job_record(job_id)
        check_kept(record, "the output")
        rank = self.query_int("rank", 0, high=99_999)
        attempt = self.query_int("attempt", record.attempts, high=1_000_000)
        offset = self.query_int("offset", 0)
        stream = f"rank-{rank}"
        size = self.context.logs.size(record.id, attempt, stream)
        end = min(size, offset + self.query_int("limit", size))
        self.set_header("Content-Type", "text/plain; charset=utf-8")
        self.set_header("Minicluster-Offset", str(offset))
        self.set_header("Minicluster-Size", str(size))
        if self.get_query_argument("download", ""):
            self.offer_as(f"job-{record.id}-{stream}.log")
        logs = self.context.logs
        read = lambda at, count: logs.read(record.id, attempt, stream, at, count)  # noqa: E731
        await self.send_range(read, offset, max(offset, end))


class ResultHandler(UserHandler, FileReply):
    """What rank 0 left: bytes that only the owner's kernel opens, so not even admins get them."""

    async def get(self, job_id: str) -> None:
        record = self.job_record(job_id, admins=False)
        check_kept(record, "the result")
        # A former release kept any hash that a task told.
        if record.result is None or self.context.store.blobs.size(record.owner, record.result.sha256) is None:
            message = f"job {record.id} is {record.state} and has no result"
            raise ApiError(404, "no_result", message, self._why_none(record))
        self.set_header("Content-Type", "application/octet-stream")
        self.offer_as(f"job-{record.id}.result")
        await self.send_file(self.context.blobs.path(record.result.sha256))

    def _why_none(self, record: JobRecord) -> str:
        if not record.state.terminal:
            return "it comes when the job has succeeded"
        notes = (line.text for line in self.context.store.events(record.id) if line.kind == "note")
        return next((text for text in notes if text.startswith(RESULT_LEFT)), "")


class CellHandler(UserHandler, FileReply):
    """What a job was sent with: bytes of its owner's kernel, for that alone, as a result."""

    async def get(self, job_id: str) -> None:
        record = self.job_record(job_id, admins=False)
        check_kept(record, "the cell")
        self.set_header("Content-Type", "application/octet-stream")
        self.offer_as(f"job-{record.id}.cell")
        part = self.get_query_argument("part", record.spec.payload_sha256)
        if part not in record.spec.blobs:
            raise ApiError(404, "unknown_blob", f"{part[:80]} is no part of the cell of job {record.id}")
        await self.send_file(self.context.blobs.path(part))


# Why a job does not get on: asked of its agents now while it runs, else of what is known.


class WhyHandler(UserHandler):
    """One sentence on a job, and the stacks of its ranks while it runs."""

    async def get(self, job_id: str) -> None:
        job = self.context.status_cache.job(self.job_record(job_id))
        if job.state is JobState.RUNNING:
            self.reply(await self._look(job))
        else:
            self.reply(JobWhy(job_id=job.id, state=job.state, sentence=_known(job), hint=_hint(job)))

    async def _look(self, job: Job) -> JobWhy:
        stacks = await self.context.status_cache.stacks(job.id)
        why = explain(stacks)
        return JobWhy(job_id=job.id, state=job.state, sentence=why.sentence, hint=why.hint, ranks=stacks)


def _known(job: Job) -> str:
    if job.error is not None:
        return f"Job {job.id} is {job.state}: {job.error.message}"
    if job.state is JobState.SUCCEEDED:
        return f"Job {job.id} has succeeded."
    why = job.reason or job.note or _ON_ITS_WAY.get(job.state, "nobody said why")
    return f"Job {job.id} is {job.state}: {why}."


def _hint(job: Job) -> str:
    return job.error.hint if job.error is not None else ""
