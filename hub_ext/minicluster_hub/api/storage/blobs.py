"""Blobs by SHA-256: payloads from notebooks to tasks, results from tasks."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Hashable, Mapping
from contextlib import ExitStack

from minicluster.wire import BlobInfo, MissingBlobs, StorageKind
from minicluster_hub.api.tasks import TaskHandler
from minicluster_hub.storage.blobs import BlobDamaged, BlobFiles, BlobWriter
from minicluster_hub.storage.quotas import OverQuota, UploadReservation
from minicluster_hub.support.disk_errors import NotKept
from minicluster_hub.web.auth import UserHandler
from minicluster_hub.web.base import ServiceHandler
from minicluster_hub.web.context import Context
from minicluster_hub.web.errors import ApiError, api_error, too_large
from minicluster_hub.web.files import FileReply
from minicluster_hub.web.route import BYTES, Route, Scope, route

_SMALL_RESULT_BYTES = 1 << 20
_LARGE_BYTES = 1 << 20


class Upload(ServiceHandler):
    """Mixin: writes the body of a PUT to disk as it comes, within its owner's quota.

    Space is reserved from before the body comes until it has its row, or is discarded.
    """

    kind = StorageKind.CELLS
    _writer: BlobWriter | None = None
    _room: UploadReservation | None = None
    _known_bytes: int | None = None

    def initialize(self, context: Context, routes: Mapping[str, Route]) -> None:
        super().initialize(context, routes)
        self._counted = ExitStack()

    async def prepare(self) -> None:
        await super().prepare()
        if self.request.method == "PUT" and not self.refused:
            try:
                self._begin(self.path_kwargs["sha256"])
            except (ApiError, OverQuota, NotKept) as error:
                self._discard()
                self.refuse(api_error(error, 503))

    def _begin(self, sha256: str) -> None:
        """Reserve space and open the file. Raises ApiError, OverQuota, NotKept."""
        (whose, sender), most = self.sender, self.context.limits.uploads
        one_more = self.context.streams.one_more(("uploads", whose, sender), most, f"uploads of {whose}")
        self._counted.enter_context(one_more)
        self._room = self._reserve(sha256)
        self._writer = self.new_writer(sha256)

    def new_writer(self, sha256: str) -> BlobWriter:
        return self.files.writer(sha256)

    def _reserve(self, sha256: str) -> UploadReservation:
        """Reserve space; for a chunked body, which has no Content-Length, more is reserved as it comes.

        Raises ApiError, OverQuota, DiskReserved.
        """
        length, known = self.content_length, self.known_bytes(sha256)
        if length is not None and known is not None and length != known:
            raise _another_size(sha256, known)
        self._known_bytes = known
        small = length is not None and length <= self.small_bytes
        return self.context.storage.reserve(
            self.owner, self.kind, length or 0, sha256, new=known is None, small=small
        )

    @property
    def content_length(self) -> int | None:
        """The Content-Length in bytes; None for a chunked body."""
        length = self.request.headers.get("Content-Length", "")
        return int(length) if length.isdecimal() else None

    def size_on_disk(self, sha256: str) -> int | None:
        """Return a file's size if it is on disk and equals the Content-Length.

        Otherwise the body counts as new: it replaces a file that the disk damaged, or its length is wrong.
        """
        found = self.files.size(sha256)
        return found if found == self.content_length else None

    @property
    @abstractmethod
    def owner(self) -> str:
        """The user whose quota it counts in. May raise ApiError."""

    @property
    @abstractmethod
    def sender(self) -> tuple[str, Hashable]:
        """The client whose simultaneous uploads are limited: in words, and its key."""

    @abstractmethod
    def known_bytes(self, sha256: str) -> int | None:
        """Return the size of a file that the owner has already, which costs no quota; None if it is new."""

    @abstractmethod
    def enter(self, info: BlobInfo) -> None:
        """Write the rows that make it its owner's. May raise ApiError."""

    @property
    def small_bytes(self) -> int:
        """Up to this size it is accepted even if only the space reserved for the database is left."""
        return -1

    @property
    def files(self) -> BlobFiles:
        """The folder for the body. May raise ApiError."""
        return self.context.blobs

    @property
    def body_name(self) -> str:
        return "the blob"

    async def data_received(self, chunk: bytes) -> None:
        if self._writer is None or self._room is None or self.refused:
            return
        size_bytes = self._writer.size_bytes + len(chunk)
        try:
            if size_bytes > self.body_limit_bytes:
                raise too_large(self.body_name, self.body_limit_bytes)
            if self._known_bytes is not None and size_bytes > self._known_bytes:
                raise _another_size(self.path_kwargs["sha256"], self._known_bytes)
            self._room.grow(size_bytes)
            self._writer.write(chunk)
        except (ApiError, OverQuota, NotKept) as error:
            self._discard()
            self.refuse(api_error(error, 503))

    async def receive(self, sha256: str) -> None:
        """Store the body and answer. Raises ApiError (422) if it is damaged."""
        writer, room = self._writer, self._room
        if writer is None or room is None:
            raise ApiError(400, "no_body", "the blob's bytes are missing")
        self._room = (
            None  # if the client disconnects now, the reservation still lasts until the row is written
        )
        with room:
            try:
                await asyncio.to_thread(writer.commit)
            except BlobDamaged as error:
                raise ApiError(422, "blob_damaged", str(error)) from error
            info = BlobInfo(sha256=sha256, size_bytes=writer.size_bytes)
            self.enter(info)
        self.reply(info)

    def on_finish(self) -> None:
        self._discard()
        super().on_finish()

    def on_connection_close(self) -> None:
        super().on_connection_close()
        self._discard()

    def _discard(self) -> None:
        if self._room is not None:
            self._room.close()
        if self._writer is not None:
            self._writer.discard()
        self._counted.close()


def _another_size(sha256: str, known_bytes: int) -> ApiError:
    message = f"the blob {sha256} came damaged: it has {known_bytes} bytes, and another number was sent"
    return ApiError(422, "blob_damaged", message, "send it again")


class UserUpload(UserHandler, Upload):
    """Base of uploads by users."""

    @property
    def owner(self) -> str:
        return self.user.name

    @property
    def sender(self) -> tuple[str, Hashable]:
        return "yours", self.user.name


class TaskUpload(TaskHandler, Upload):
    """Base of uploads by tasks, for the owner of their job."""

    @property
    def owner(self) -> str:
        return self.job().owner

    @property
    def sender(self) -> tuple[str, Hashable]:
        return "this task", self.task.id


class UserBlobHandler(UserUpload):
    """Payloads. Only a user who sent the bytes has the blob; knowing its hash grants nothing."""

    def new_writer(self, sha256: str) -> BlobWriter:
        """A large value is not synced before the answer: its sender has it, and waits for the job."""
        return self.files.writer(sha256, durable=(self.content_length or 0) < _LARGE_BYTES)

    @property
    def body_limit_bytes(self) -> int:
        return self.context.limits.payload_bytes

    def known_bytes(self, sha256: str) -> int | None:
        return self.context.store.blobs.size(self.owner, sha256)

    def enter(self, info: BlobInfo) -> None:
        self.context.store.blobs.add(self.owner, info.sha256, info.size_bytes, self.context.clock())
        self.context.status_cache.blob_came(self.owner, info.sha256)

    @route("api/blobs/{sha256}", "Store a payload", scope=Scope.SUBMIT, body=BYTES, answer=BlobInfo)
    async def put(self, sha256: str) -> None:
        await self.receive(sha256)

    @route("api/blobs/{sha256}", "Is a payload there?", scope=Scope.SUBMIT)
    def head(self, sha256: str) -> None:
        store, now = self.context.store, self.context.clock()
        # Renewed, since the client will not send it, and will name it in a moment.
        # The row is read first: otherwise the time of the disk access would reveal another user's blob.
        if not store.blobs.renew(self.user.name, sha256, now) or self.context.blobs.size(sha256) is None:
            raise ApiError(404, "unknown_blob", f"there is no blob {sha256} of yours")
        self.finish()


class MissingBlobsHandler(UserHandler):
    """Returns the blobs that a notebook must send; the others are renewed, since it will name them soon."""

    @route(
        "api/missing-blobs",
        "Which parts of a payload must be sent",
        scope=Scope.SUBMIT,
        body=MissingBlobs,
        answer=MissingBlobs,
    )
    def post(self) -> None:
        blobs = self.parse(MissingBlobs).sha256
        lacks = self.context.store.blobs.renew_all(self.user.name, blobs, self.context.clock())
        missing = tuple(one for one in blobs if one in lacks or self.context.blobs.size(one) is None)
        self.context.status_cache.fresh_parts.expect(self.user.name, missing)
        self.reply(MissingBlobs(sha256=missing))


class TaskBlobHandler(TaskUpload, FileReply):
    """Downloads the payload of the task's job, and uploads its result."""

    @property
    def body_limit_bytes(self) -> int:
        return self.context.limits.result_bytes

    @route("api/tasks/blobs/{sha256}", "Store a result", body=BYTES, answer=BlobInfo)
    async def put(self, sha256: str) -> None:
        await self.receive(sha256)

    @route("api/tasks/blobs/{sha256}", "The payload of the task's job", answer=BYTES)
    async def get(self, sha256: str) -> None:
        if sha256 not in self.context.status_cache.coming(self.task):
            self._check_own(sha256)
        await self.send_file(self.context.blobs.path(sha256))

    def _check_own(self, sha256: str) -> None:
        """Raise ApiError unless the blob belongs to the task's job."""
        run = self.run_order()
        own = {run.payload_sha256, run.bundle_sha256, *run.parts, *self.context.sessions.blobs(run.job_id)}
        if sha256 not in own:
            raise ApiError(404, "unknown_blob", f"{sha256} is not the payload of this task's job")

    @property
    def small_bytes(self) -> int:
        return _SMALL_RESULT_BYTES

    def known_bytes(self, sha256: str) -> int | None:
        return self.context.store.blobs.size(self.owner, sha256)

    def enter(self, info: BlobInfo) -> None:
        self.context.store.blobs.add(self.owner, info.sha256, info.size_bytes, self.context.clock())


class JobFileUpload(TaskUpload):
    """Base of uploads of files that belong to one job."""

    def known_bytes(self, sha256: str) -> int | None:
        has = self.context.store.storage.has(self.run_order().job_id, self.kind, sha256)
        return self.size_on_disk(sha256) if has else None

    def enter(self, info: BlobInfo) -> None:
        job = self.job()
        self.context.store.storage.add(job.owner, job.id, self.kind, [info])
