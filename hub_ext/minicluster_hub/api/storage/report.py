"""Users' storage on the service's disk: its size by kind, its limit, and the removal of a job's data."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from minicluster.wire import OwnerStorage, StorageKind, StorageReport, StorageUse
from minicluster_hub.storage.retention import JobRemoval
from minicluster_hub.web.auth import UserHandler
from minicluster_hub.web.errors import ApiError
from minicluster_hub.web.route import OWNER, Scope, route

_MOST_THINGS = 100


class StorageHandler(UserHandler):
    """The user's own storage; for admins, everybody's and the disk's."""

    @route(
        "api/storage",
        "Your storage on the service's disk, its limit, and its largest entries",
        scope=Scope.READ,
        answer=StorageReport,
        query=(OWNER,),
    )
    async def get(self) -> None:
        owner, store, storage = self.requested_owner(), self.context.store, self.context.storage
        if owner is None:
            used = await asyncio.to_thread(store.storage.used_by_all)
        else:
            used = {owner: await asyncio.to_thread(store.storage.used, owner)}
        owners = sorted((self._of(*one) for one in used.items()), key=lambda one: -one.used_bytes)
        things = await asyncio.to_thread(store.storage.largest, owner, _MOST_THINGS)
        disk = storage.disk.report() if owner is None else None
        self.reply(StorageReport(owners=tuple(owners), things=tuple(things), disk=disk))

    def _of(self, owner: str, uses: Mapping[StorageKind, StorageUse]) -> OwnerStorage:
        ranked = sorted(uses.values(), key=lambda use: -use.size_bytes)
        storage = self.context.storage
        return OwnerStorage(
            owner=owner,
            used_bytes=sum(use.size_bytes for use in ranked),
            limit_bytes=storage.limit_of(owner),
            coming_bytes=storage.coming_bytes(owner),
            uses=tuple(ranked),
        )


class JobStorageHandler(UserHandler):
    @route(
        "api/jobs/{job_id}/storage",
        "Remove the cell, result, snapshots, files and output of an ended job; its history stays",
        scope=Scope.SUBMIT,
        status=204,
    )
    async def delete(self, job_id: str) -> None:
        record, context = self.job_record(job_id), self.context
        if not record.state.terminal:
            message = f"job {record.id} is {record.state}: it still needs its data"
            raise ApiError(409, "job_open", message, f"end it first: %distribute stop {record.id}")
        if record.removed_at is None:
            removal = JobRemoval(
                context.store, context.blobs, context.logs, context.recorder.files, context.storage
            )
            await removal.remove(record, self.user.name, context.clock())
            context.log.info("%s removed the data of job %s of %s", self.user.name, record.id, record.owner)
            context.status_cache.changes.notify(record.id)
        self.set_status(204)
        self.finish()
