"""Blobs by SHA-256: payloads up from notebooks and down to tasks, results up from tasks."""

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


class Upload(ServiceHandler):
    """Mixin: the body of a PUT goes to disk as it comes, if its owner may keep so much.

    Room is kept for it from before it comes until it has its row, or is lost.
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
        """Raise ApiError, OverQuota, NotKept."""
        (whose, sender), most = self.sender, self.context.limits.uploads
        one_more = self.context.streams.one_more(("uploads", whose, sender), most, f"uploads of {whose}")
        self._counted.enter_context(one_more)
        self._room = self._reserve(sha256)
        self._writer = self.files.writer(sha256)

    def _reserve(self, sha256: str) -> UploadReservation:
        """Raise ApiError, OverQuota, DiskReserved. A chunked body tells no length, and grows as it comes."""
        told, known = self.told_bytes, self.known_bytes(sha256)
        if told is not None and known is not None and told != known:
            raise _another_size(sha256, known)
        self._known_bytes = known
        small = told is not None and told <= self.small_bytes
        return self.context.storage.reserve(
            self.owner, self.kind, told or 0, sha256, new=known is None, small=small
        )

    @property
    def told_bytes(self) -> int | None:
        """The size of the body as its sender tells it."""
        told = self.request.headers.get("Content-Length", "")
        return int(told) if told.isdecimal() else None

    def as_on_disk(self, sha256: str) -> int | None:
        """Return a file's size if it is there, and has the size that is told.

        Else it counts as a new one: it is sent to mend one that the disk has cut, or its size is a lie.
        """
        found = self.files.size(sha256)
        return found if found == self.told_bytes else None

    @property
    @abstractmethod
    def owner(self) -> str:
        """Whose quota it counts to. May raise ApiError."""

    @property
    @abstractmethod
    def sender(self) -> tuple[str, Hashable]:
        """Who sends only so many at once: in words, and which one."""

    @abstractmethod
    def known_bytes(self, sha256: str) -> int | None:
        """Return the size of a file that the owner has already, which costs nothing more; None: it is new."""

    @abstractmethod
    def enter(self, info: BlobInfo) -> None:
        """Write the rows that count it as its owner's. May raise ApiError."""

    @property
    def small_bytes(self) -> int:
        """Up to this size it may come while what is left of the disk is the database's."""
        return -1

    @property
    def files(self) -> BlobFiles:
        """Where the body goes. May raise ApiError."""
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
        """Keep the body and answer. Raises ApiError (422) if it is damaged."""
        writer, room = self._writer, self._room
        if writer is None or room is None:
            raise ApiError(400, "no_body", "the blob's bytes are missing")
        self._room = None  # whoever hangs up now has the room kept until it has its row
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
    message = f"the blob {sha256} came damaged: it has {known_bytes} bytes, and others were sent"
    return ApiError(422, "blob_damaged", message, "send it again")


class UserUpload(UserHandler, Upload):
    """Base: a file of a user's own."""

    @property
    def owner(self) -> str:
        return self.user.name

    @property
    def sender(self) -> tuple[str, Hashable]:
        return "yours", self.user.name


class TaskUpload(TaskHandler, Upload):
    """Base: a file of the bound job's owner."""

    @property
    def owner(self) -> str:
        return self.job().owner

    @property
    def sender(self) -> tuple[str, Hashable]:
        return "this task", self.task.id


class UserBlobHandler(UserUpload):
    """Payloads. Whoever sends the bytes has them; a hash alone opens nothing."""

    @property
    def body_limit_bytes(self) -> int:
        return self.context.limits.payload_bytes

    def known_bytes(self, sha256: str) -> int | None:
        return self.context.store.blobs.size(self.owner, sha256)

    def enter(self, info: BlobInfo) -> None:
        self.context.store.blobs.add(self.owner, info.sha256, info.size_bytes, self.context.clock())

    @route("api/blobs/{sha256}", "Store a payload", scope=Scope.SUBMIT, body=BYTES, answer=BlobInfo)
    async def put(self, sha256: str) -> None:
        await self.receive(sha256)

    @route("api/blobs/{sha256}", "Is a payload there?", scope=Scope.SUBMIT)
    def head(self, sha256: str) -> None:
        store, now = self.context.store, self.context.clock()
        # Who is told that it is here sends it no more, and names it in a moment.
        # Its rows first: how long the disk takes would tell of a blob of another's.
        if not store.blobs.renew(self.user.name, sha256, now) or self.context.blobs.size(sha256) is None:
            raise ApiError(404, "unknown_blob", f"there is no blob {sha256} of yours")
        self.finish()


class MissingBlobsHandler(UserHandler):
    """Says which blobs a notebook has to send; the others stay until it names them in a moment."""

    @route(
        "api/missing-blobs",
        "Which parts of a payload are to be sent",
        scope=Scope.SUBMIT,
        body=MissingBlobs,
        answer=MissingBlobs,
    )
    def post(self) -> None:
        blobs = self.parse(MissingBlobs).sha256
        lacks = self.context.store.blobs.renew_all(self.user.name, blobs, self.context.clock())
        missing = (one for one in blobs if one in lacks or self.context.blobs.size(one) is None)
        self.reply(MissingBlobs(sha256=tuple(missing)))


class TaskBlobHandler(TaskUpload, FileReply):
    """The bound job's payload down, its result up."""

    @property
    def body_limit_bytes(self) -> int:
        return self.context.limits.result_bytes

    @route("api/tasks/blobs/{sha256}", "Store a result", body=BYTES, answer=BlobInfo)
    async def put(self, sha256: str) -> None:
        await self.receive(sha256)

    @route("api/tasks/blobs/{sha256}", "The payload of the task's job", answer=BYTES)
    async def get(self, sha256: str) -> None:
        run = self.run_order()
        if sha256 not in (run.payload_sha256, run.bundle_sha256, *run.parts):
            raise ApiError(404, "unknown_blob", f"{sha256} is not the payload of this task's job")
        await self.send_file(self.context.blobs.path(sha256))

    @property
    def small_bytes(self) -> int:
        return _SMALL_RESULT_BYTES

    def known_bytes(self, sha256: str) -> int | None:
        return self.context.store.blobs.size(self.owner, sha256)

    def enter(self, info: BlobInfo) -> None:
        self.context.store.blobs.add(self.owner, info.sha256, info.size_bytes, self.context.clock())


class JobFileUpload(TaskUpload):
    """Base: a file that the bound job alone has."""

    def known_bytes(self, sha256: str) -> int | None:
        has = self.context.store.storage.has(self.run_order().job_id, self.kind, sha256)
        return self.as_on_disk(sha256) if has else None

    def enter(self, info: BlobInfo) -> None:
        job = self.job()
        self.context.store.storage.add(job.owner, job.id, self.kind, [info])
