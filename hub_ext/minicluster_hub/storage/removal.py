"""Removes what a job that is over keeps, when its owner or an admin asks for it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from minicluster_hub.jobs.records import JobRecord
from minicluster_hub.storage.blobs import BlobFiles
from minicluster_hub.storage.logs import JobLogs
from minicluster_hub.storage.quotas import Storage
from minicluster_hub.store import Store

_NAMED_AT_ONCE = 500
_FILES_AT_ONCE = 50


@dataclass(frozen=True)
class JobRemoval:
    """Rows first, as in old_jobs, which finds the files that are left if the service is killed in between."""

    store: Store
    blobs: BlobFiles
    logs: JobLogs
    storage: Storage

    async def remove(self, job: JobRecord, by: str, now: float) -> None:
        """Remove its cell, result, snapshots, files and output. Its row and its story stay."""
        # Jobs of an earlier release name their blobs in their specs alone, until this was done once.
        while await asyncio.to_thread(self.store.old_jobs.name_blobs, _NAMED_AT_ONCE) == _NAMED_AT_ONCE:
            pass
        gone = self.store.storage.remove_job(job.id, by, now)
        self.storage.forget(job.owner)
        for number, sha256 in enumerate(gone):
            # In one go with the question: whoever brings it again has its row written at its end.
            if not self.storage.is_coming(sha256) and self.store.blobs.unknown((sha256,)):
                self.blobs.remove(sha256)
            if number % _FILES_AT_ONCE == 0:
                await asyncio.sleep(0)
        for remove in (self.logs.remove, self.blobs.remove_own, self.blobs.remove_output):
            await asyncio.to_thread(remove, job.id)
