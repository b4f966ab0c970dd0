"""Blobs by SHA-256: payloads up from notebooks and down to tasks, results up from tasks."""

from __future__ import annotations

import asyncio

from minicluster.wire import BlobInfo, MissingBlobs
from minicluster_hub.blobs import BlobDamaged, BlobFiles, BlobNotKept, BlobWriter
from minicluster_hub.handlers.auth import UserHandler
from minicluster_hub.handlers.base import ServiceHandler
from minicluster_hub.handlers.errors import ApiError, api_error, too_large
from minicluster_hub.handlers.files import FileReply
from minicluster_hub.handlers.route import Route, Scope
from minicluster_hub.handlers.tasks import TaskHandler


class Upload(ServiceHandler):
    """Mixin: the body of a PUT goes to disk as it comes."""

    _writer: BlobWriter | None = None

    async def prepare(self) -> None:
        await super().prepare()
        if self.request.method == "PUT" and not self.refused:
            try:
                self._writer = self.files.writer(self.path_kwargs["sha256"])
            except (ApiError, BlobNotKept) as error:
                self.refuse(api_error(error, 503))

    @property
    def files(self) -> BlobFiles:
        """Where the body goes. May raise ApiError."""
        return self.context.blobs

    @property
    def body_name(self) -> str:
        return "the blob"

    async def data_received(self, chunk: bytes) -> None:
        if self._writer is None or self.refused:
            return
        if self._writer.size_bytes + len(chunk) > self.body_limit_bytes:
            self._writer.discard()
            self.refuse(too_large(self.body_name, self.body_limit_bytes))
            return
        try:
            self._writer.write(chunk)
        except BlobNotKept as error:
            self._writer.discard()
            self.refuse(api_error(error, 503))

    async def keep(self, owner: str) -> None:
        """Commit the body as a blob of this owner and answer. Raises ApiError (422) if damaged."""
        info = await self.take()
        self.context.store.blobs.add(owner, info.sha256, info.size_bytes, self.context.clock())
        self.reply(info)

    async def take(self) -> BlobInfo:
        """Commit the body. Raises ApiError (422) if damaged."""
        writer = self._writer
        if writer is None:
            raise ApiError(400, "no_body", "the blob's bytes are missing")
        sha256 = self.path_kwargs["sha256"]
        try:
            await asyncio.to_thread(writer.commit)
        except BlobDamaged as error:
            raise ApiError(422, "blob_damaged", str(error)) from error
        return BlobInfo(sha256=sha256, size_bytes=writer.size_bytes)

    def on_finish(self) -> None:
        self._discard()
        super().on_finish()

    def on_connection_close(self) -> None:
        super().on_connection_close()
        self._discard()

    def _discard(self) -> None:
        if self._writer is not None:
            self._writer.discard()


class UserBlobHandler(UserHandler, Upload):
    """Payloads. Whoever sends the bytes has them; a hash alone opens nothing."""

    @property
    def body_limit_bytes(self) -> int:
        return self.context.limits.payload_bytes

    async def put(self, sha256: str) -> None:
        await self.keep(self.user.name)

    def head(self, sha256: str) -> None:
        store, now = self.context.store, self.context.clock()
        # Who is told that it is here sends it no more, and names it in a moment.
        if not self.context.blobs.size(sha256) or not store.blobs.renew(self.user.name, sha256, now):
            raise ApiError(404, "unknown_blob", f"there is no blob {sha256} of yours")
        self.finish()


class MissingBlobsHandler(UserHandler):
    """Says which blobs a notebook has to send; the others stay until it names them in a moment."""

    def post(self) -> None:
        blobs = self.parse(MissingBlobs).sha256
        lacks = self.context.store.blobs.renew_all(self.user.name, blobs, self.context.clock())
        missing = (one for one in blobs if one in lacks or self.context.blobs.size(one) is None)
        self.reply(MissingBlobs(sha256=tuple(missing)))


class TaskBlobHandler(TaskHandler, Upload, FileReply):
    """The bound job's payload down, its result up."""

    @property
    def body_limit_bytes(self) -> int:
        return self.context.limits.result_bytes

    async def get(self, sha256: str) -> None:
        run = self.run_order()
        if sha256 not in (run.payload_sha256, run.bundle_sha256, *run.parts):
            raise ApiError(404, "unknown_blob", f"{sha256} is not the payload of this task's job")
        self.set_header("Content-Type", "application/octet-stream")
        await self.send_file(self.context.blobs.path(sha256))

    async def put(self, sha256: str) -> None:
        record = self.context.store.job(self.run_order().job_id)
        if record is None:
            raise ApiError(409, "no_attempt", f"task {self.task.id} has no job now")
        await self.keep(record.owner)


ROUTES: tuple[Route, ...] = (
    Route(
        "PUT",
        "api/blobs/{sha256}",
        UserBlobHandler,
        "Store a payload",
        scope=Scope.SUBMIT,
        body="application/octet-stream",
        answer=BlobInfo,
    ),
    Route("HEAD", "api/blobs/{sha256}", UserBlobHandler, "Is a payload there?", scope=Scope.SUBMIT),
    Route(
        "POST",
        "api/missing-blobs",
        MissingBlobsHandler,
        "Which parts of a payload are to be sent",
        scope=Scope.SUBMIT,
        body=MissingBlobs,
        answer=MissingBlobs,
    ),
)
"""What users ask of blobs."""
