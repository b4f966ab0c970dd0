"""The files that jobs left in their output folders: where one is, and how long they are kept."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from minicluster.wire import StorageKind
from minicluster_hub.storage.blobs import BlobFiles
from minicluster_hub.store import Store, StoreError

DAY_S = 86_400.0
_LOOK_EACH_S = 3600.0
_JOBS_AT_ONCE = 20
_PAUSE_S = 1.0
_UNTOLD_S = 3600.0


def artifact_file(store: Store, blobs: BlobFiles, job_id: int, path: str) -> Path | None:
    """Return where the file is that a job wrote as `path` of its output folder; None if there is none.

    Of a job with several tasks it is that of the first one that has it.
    """
    found = store.artifacts.find(job_id, path)
    file = None if found is None else blobs.output_of(job_id).path(found.sha256)
    return file if file is not None and file.is_file() else None


@dataclass(frozen=True)
class Retention:
    """Removes the files of jobs that ended long ago: a few jobs at a time, again after a restart."""

    store: Store
    blobs: BlobFiles
    keep_days: float
    clock: Callable[[], float]
    log: logging.Logger

    async def run(self) -> None:
        """Remove what is due until cancelled; with keep_days 0 nothing ever is.

        It begins with a service that leads: agents that waited for it have their reports still to send.
        """
        heard_at = self.clock() + _UNTOLD_S
        while True:
            removed = 0
            try:
                if self.clock() >= heard_at:
                    await self.remove_untold()
                removed = await self.sweep() if self.keep_days else 0
            except (StoreError, OSError) as error:
                self.log.warning("old files of jobs were not removed: %s", error)
            await asyncio.sleep(_PAUSE_S if removed == _JOBS_AT_ONCE else _LOOK_EACH_S)

    async def remove_untold(self) -> None:
        """Remove what came and was never told of: its agent or this service died in between."""
        for job_id in await asyncio.to_thread(self.blobs.outputs):
            known, files = self.store.artifacts.blobs(job_id), self.blobs.output_of(job_id)
            await self._remove_others(job_id, StorageKind.FILES, files, known)
        for job_id in await asyncio.to_thread(self.blobs.jobs):
            known, files = self.store.snapshots.blobs(job_id), self.blobs.of_job(job_id)
            await self._remove_others(job_id, StorageKind.SNAPSHOTS, files, known)

    async def _remove_others(
        self, job_id: int, kind: StorageKind, files: BlobFiles, known: frozenset[str]
    ) -> None:
        """Remove a job's files but these. The rows first: a file without one is found again."""
        others = {*await asyncio.to_thread(files.older_than, _UNTOLD_S)} - known
        if others:
            self.store.storage.remove(job_id, kind, others)
            await asyncio.to_thread(files.remove_old, others, _UNTOLD_S)

    async def sweep(self) -> int:
        """Remove the files of some jobs; return of how many."""
        due = self.store.artifacts.ended_before(self.clock() - self.keep_days * DAY_S, _JOBS_AT_ONCE)
        for job_id in due:
            # The rows last: a service that is killed in between finds the job again.
            await asyncio.to_thread(self.blobs.remove_output, job_id)
            self.store.artifacts.forget(job_id)
        if due:
            self.log.info("removed the files of %s jobs that ended %g days ago", len(due), self.keep_days)
        return len(due)
