"""Compile caches for agents: those of the owner of their job, in its image."""

from __future__ import annotations

import re

from minicluster.wire import BlobInfo, StorageKind
from minicluster.wire.files.compile_caches import CACHE_BYTES, CompileCache, CompiledEntries
from minicluster_hub.api.storage.blobs import TaskUpload
from minicluster_hub.api.tasks import TaskHandler
from minicluster_hub.storage.blobs import BlobFiles
from minicluster_hub.store.storage.compile_caches import CacheKey
from minicluster_hub.web.errors import ApiError
from minicluster_hub.web.files import FileReply
from minicluster_hub.web.route import BYTES, Query, route

_ENVIRONMENT = Query("environment", "string", "the digest of what the compiled code depends on")


class _OfCache(TaskHandler):
    def key(self, environment: str) -> CacheKey:
        """Return the key of a cache of the task's job. Raises ApiError (409)."""
        job = self.job()
        return CacheKey(job.owner, job.spec.image or "", environment)

    def asked_key(self) -> CacheKey:
        """Return the key of the cache that the query names. Raises ApiError (409, 422)."""
        environment = self.get_query_argument("environment", "")
        if not re.fullmatch("[0-9a-f]{64}", environment):
            raise ApiError(422, "invalid", "environment: want a SHA-256 in hexadecimal digits")
        return self.key(environment)


class TaskCompileCacheHandler(_OfCache):
    @route(
        "api/tasks/compile-cache",
        "What torch.compile made for earlier ranks of the owner",
        answer=CompileCache,
        query=(_ENVIRONMENT,),
    )
    def get(self) -> None:
        self.reply(CompileCache(pieces=tuple(self.context.compile_caches.use(self.asked_key()))))

    @route(
        "api/tasks/compile-cache",
        "Which of what the task compiled it shall send",
        body=CompiledEntries,
        answer=CompiledEntries,
    )
    def post(self) -> None:
        offered = self.parse(CompiledEntries)
        key, caches = self.key(offered.environment), self.context.compile_caches
        caches.remove(key, offered.damaged)
        entries = caches.claim(key, self.run_order().attempt, self.task.id, offered.entries)
        self.reply(CompiledEntries(environment=offered.environment, entries=entries))


class TaskCompiledPieceHandler(_OfCache, TaskUpload, FileReply):
    """One piece of a cache."""

    kind = StorageKind.COMPILED

    @property
    def files(self) -> BlobFiles:
        return self.context.compile_caches.files

    @property
    def body_limit_bytes(self) -> int:
        return CACHE_BYTES

    @property
    def body_name(self) -> str:
        return "the compiled code"

    def known_bytes(self, sha256: str) -> int | None:
        pieces = self.context.store.compile_caches.pieces(self.asked_key())
        return self.size_on_disk(sha256) if sha256 in {piece.sha256 for piece in pieces} else None

    def enter(self, info: BlobInfo) -> None:
        self.context.compile_caches.add(self.asked_key(), info)

    @route(
        "api/tasks/compile-cache/{sha256}",
        "Add a piece to a compile cache",
        body=BYTES,
        answer=BlobInfo,
        query=(_ENVIRONMENT,),
    )
    async def put(self, sha256: str) -> None:
        await self.receive(sha256)

    @route(
        "api/tasks/compile-cache/{sha256}",
        "A piece of a compile cache",
        answer=BYTES,
        query=(_ENVIRONMENT,),
    )
    async def get(self, sha256: str) -> None:
        if sha256 not in {
            piece.sha256 for piece in self.context.store.compile_caches.pieces(self.asked_key())
        }:
            raise ApiError(404, "unknown_blob", f"{sha256} is no piece of this compile cache")
        await self.send_file(self.files.path(sha256))
