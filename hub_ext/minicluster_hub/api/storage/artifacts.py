"""Files of jobs' output folders: uploaded by agents, listed, and sent to their owner."""

from __future__ import annotations

import asyncio
import re
from contextlib import ExitStack

from pydantic import BaseModel

from minicluster.wire import ArtifactList, BlobInfo, SmallFiles, StorageKind
from minicluster_hub.api.storage.blobs import JobFileUpload
from minicluster_hub.api.tasks import TaskHandler, uncounted_bytes
from minicluster_hub.storage.blobs import BlobFiles
from minicluster_hub.storage.retention import DAY_S
from minicluster_hub.support.disk_errors import NotKept
from minicluster_hub.web.auth import UserHandler
from minicluster_hub.web.errors import ApiError
from minicluster_hub.web.files import FileReply
from minicluster_hub.web.route import BYTES, Query, Scope, route

_PAGE = 1000
_PART = re.compile(r"[0-9]{1,4}")
_CUT = f"These are the first {_PAGE} files: this minicluster is older than the hub's. Restart your server."
_COMES = "Files of its output folder are being uploaded."
_LONG_BYTES = 32 << 20
_WAITS = "The job service's disk is full: the job's files wait on the nodes until there is space."


class ArtifactsHandler(UserHandler):
    @route(
        "api/jobs/{job_id}/files",
        "The files of a job's output folder, page by page",
        scope=Scope.READ,
        answer=ArtifactList,
        query=(
            Query("after", "string", "only files after this one, given as PART/PATH"),
            Query("limit", "integer", "the most files, by task and path", default=_PAGE, low=1, high=_PAGE),
        ),
    )
    def get(self, job_id: str) -> None:
        record = self.job_record(job_id)
        days, ended_at = self.context.limits.artifacts_keep_days, record.ended_at
        keep_until = ended_at + days * DAY_S if days and ended_at else None
        after, limit = self._after(), self.query_int("limit")
        found = self.context.store.artifacts.listed(record.id, limit + 1, after or (-1, ""))
        more = len(found) > limit
        left = () if after else self._left(record.id, more=more)
        self.reply(ArtifactList(artifacts=tuple(found[:limit]), keep_until=keep_until, left=left, more=more))

    def _after(self) -> tuple[int, str] | None:
        """Return task and path of the last file of the page before. Raises ApiError (422)."""
        after = self.get_query_argument("after", None, strip=False)
        if after is None:
            return None
        part, slash, path = after.partition("/")
        if not (slash and _PART.fullmatch(part)):
            raise ApiError(422, "invalid", f"after={after[:40]!r}: want PART/PATH of a file, like 0/model.pt")
        return int(part), path

    def _left(self, job_id: int, *, more: bool) -> tuple[str, ...]:
        """Return messages about missing files. A client that gives no limit may not know pages."""
        left = self.context.store.artifacts.left(job_id)
        cut = more and self.get_query_argument("limit", None) is None
        return (*left, _CUT) if cut else left


class ArtifactHandler(UserHandler, FileReply):
    """One file. It may be a pickle, so admins cannot get it."""

    @route(
        "api/jobs/{job_id}/files/{file}",
        "One of these files, or a range of it",
        scope=Scope.READ,
        answer=BYTES,
        query=(Query("part", "integer", "the task; the first with this file if not given", high=9_999),),
        parts={"file": ".+"},
    )
    async def get(self, job_id: str, file: str) -> None:
        record = self.job_record(job_id, admins=False)
        part = self.query_int("part") if self.get_query_argument("part", "") else None
        found = self.context.store.artifacts.find(record.id, file, part)
        path = found and self.context.blobs.output_of(record.id).path(found.sha256)
        if found is None or path is None or not path.is_file():
            message = f"job {record.id} has no file {file!r}"
            raise ApiError(404, "unknown_file", message, f"api/jobs/{record.id}/files lists those it has")
        self.offer_as(found.path.rpartition("/")[2])
        await self.send_file(path)


class TaskArtifactsHandler(TaskHandler):
    """Small files of the job's output folder, several at once."""

    def carried_bytes(self, message: BaseModel) -> int:
        return uncounted_bytes(message.contents) if isinstance(message, SmallFiles) else 0

    @route("api/tasks/files", "Store small files, each by its SHA-256", body=SmallFiles, status=204)
    async def post(self) -> None:
        contents, job = self.parse(SmallFiles).contents, self.job()
        try:
            with ExitStack() as rooms:
                for data in contents:
                    rooms.enter_context(self.context.storage.reserve(job.owner, StorageKind.FILES, len(data)))
                files = self.context.blobs.output_of(job.id)
                # In threads at once, since each waits for the disk.
                stored = await asyncio.gather(*(asyncio.to_thread(files.keep, data) for data in contents))
                self.context.store.storage.add(job.owner, job.id, StorageKind.FILES, stored)
        except NotKept as error:
            _annotate(self, _WAITS if error.full else "")
            raise
        _annotate(self, "")
        self.set_status(204)
        self.finish()


class TaskArtifactHandler(JobFileUpload):
    """A file of the job's output folder."""

    kind = StorageKind.FILES

    @property
    def files(self) -> BlobFiles:
        return self.context.blobs.output_of(self.run_order().job_id)

    @property
    def body_limit_bytes(self) -> int:
        return self.run_order().output.size_bytes

    @property
    def body_name(self) -> str:
        return "the file"

    async def prepare(self) -> None:
        await super().prepare()
        if not self.refused and (self.content_length or 0) >= _LONG_BYTES:
            _annotate(self, _COMES)

    def refuse(self, error: ApiError) -> None:
        if error.detail.code == "disk_full":
            _annotate(self, _WAITS)
        super().refuse(error)

    @route("api/tasks/files/{sha256}", "Store a file of the output folder", body=BYTES, answer=BlobInfo)
    async def put(self, sha256: str) -> None:
        await self.receive(sha256)

    def enter(self, info: BlobInfo) -> None:
        super().enter(info)
        _annotate(self, "")


def _annotate(handler: TaskHandler, note: str) -> None:
    """Show on the job's page why it has not ended yet; "" removes the note."""
    handler.context.status_cache.annotate(handler.run_order().job_id, note, "files")
