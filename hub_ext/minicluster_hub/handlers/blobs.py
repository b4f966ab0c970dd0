"""Blobs by SHA-256: payloads up from notebooks and down to tasks, results up from tasks."""

from __future__ import annotations

import asyncio
from abc import abstractmethod

from minicluster.wire import BlobInfo, MissingBlobs, StorageKind
from minicluster_hub.blobs import BlobDamaged, BlobFiles, BlobWriter
from minicluster_hub.full_disk import NotKept
from minicluster_hub.handlers.auth import UserHandler
from minicluster_hub.handlers.base import ServiceHandler
from minicluster_hub.handlers.errors import ApiError, api_error, too_large
from minicluster_hub.handlers.files import FileReply
from minicluster_hub.handlers.route import Route, Scope
from minicluster_hub.handlers.tasks import TaskHandler
from minicluster_hub.storage import OverQuota, Reservation

_SMALL_RESULT_BYTES = 1 << 20


class Upload(ServiceHandler):
    """Mixin: the body of a PUT goes to disk as it comes, if its owner may keep so much.

    Room is kept for it from before it comes until it has its row, or is lost.
    """

    kind = StorageKind.CELLS
    _writer: BlobWriter | None = None
    _room: Reservation | None = None

    async def prepare(self) -> None:
        await super().prepare()
        if self.request.method == "PUT" and not self.refused:
            try:
                self._room = self._reserve(self.path_kwargs["sha256"])
                self._writer = self.files.writer(self.path_kwargs["sha256"])
            except (ApiError, OverQuota, NotKept) as error:
                self.refuse(api_error(error, 503))

    def _reserve(self, sha256: str) -> Reservation:
        """Raise ApiError, OverQuota, DiskReserved. A chunked body tells no length, and grows as it comes."""
        told = self.request.headers.get("Content-Length", "")
        size_bytes = int(told) if told.isdecimal() else 0
        small = bool(told) and size_bytes <= self.small_bytes
        storage, new = self.context.storage, not self.is_known(sha256)
        return storage.reserve(self.owner, self.kind, size_bytes, sha256, new=new, small=small)

    @property
    @abstractmethod
    def owner(self) -> str:
        """Whose quota it counts to. May raise ApiError."""

    @abstractmethod
    def is_known(self, sha256: str) -> bool:
        """Whether the owner has it already: it costs nothing more."""

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
            self._room.grow(size_bytes)
            self._writer.write(chunk)
        except (ApiError, OverQuota, NotKept) as error:
            self._discard()
            self.refuse(api_error(error, 503))

    async def put(self, sha256: str) -> None:
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


class UserBlobHandler(UserHandler, Upload):
    """Payloads. Whoever sends the bytes has them; a hash alone opens nothing."""

    @property
    def body_limit_bytes(self) -> int:
        return self.context.limits.payload_bytes

    @property
    def owner(self) -> str:
        return self.user.name

    def is_known(self, sha256: str) -> bool:
        return self.context.store.blobs.size(self.owner, sha256) is not None

    def enter(self, info: BlobInfo) -> None:
        self.context.store.blobs.add(self.owner, info.sha256, info.size_bytes, self.context.clock())

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

    @property
    def small_bytes(self) -> int:
        return _SMALL_RESULT_BYTES

    @property
    def owner(self) -> str:
        return self.job().owner

    def is_known(self, sha256: str) -> bool:
        return self.context.store.blobs.size(self.owner, sha256) is not None

    def enter(self, info: BlobInfo) -> None:
        self.context.store.blobs.add(self.owner, info.sha256, info.size_bytes, self.context.clock())


class JobFileUpload(TaskHandler, Upload):
    """Base: a file that the bound job alone has."""

    @property
    def owner(self) -> str:
        return self.job().owner

    def is_known(self, sha256: str) -> bool:
        return self.context.store.storage.has(self.run_order().job_id, self.kind, sha256)

    def enter(self, info: BlobInfo) -> None:
        job = self.job()
        self.context.store.storage.add(job.owner, job.id, self.kind, [info])


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
