"""Removes jobs' stored data: after the days that an admin set, or when a job's owner asks.

The order of each removal lets a service that is killed in between complete it after its restart.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import NoReturn

from minicluster.wire import StorageKind
from minicluster_hub.jobs.records import JobRecord
from minicluster_hub.storage.blobs import BlobFiles
from minicluster_hub.storage.logs import JobLogs
from minicluster_hub.storage.quotas import Storage
from minicluster_hub.storage.run_files import RunFiles
from minicluster_hub.store import Store, StoreError
from minicluster_hub.store.rows import AT_ONCE, portions

DAY_S = 86_400.0
_EACH_S = 3600.0
_PAUSE_S = 1.0
_REPORTED_WITHIN_S = 3600.0
"""Seconds in which agents and notebooks report files that they sent, even if they waited for the service."""
_UNNAMED_S = DAY_S
"""Seconds that a blob without a job stays after it came or was last requested."""
_JOBS_AT_ONCE = 20
_FILES_AT_ONCE = 50


async def _repeat(remove: Callable[[], Awaitable[int]], what: str, log: logging.Logger) -> NoReturn:
    """Call `remove` each hour. If it removed as much as it may, more may be due: call it again at once."""
    while True:
        removed = 0
        try:
            removed = await remove()
        except (StoreError, OSError) as error:
            log.warning("%s were not removed: %s", what, error)
        await asyncio.sleep(_PAUSE_S if removed == _JOBS_AT_ONCE else _EACH_S)


@dataclass(frozen=True)
class ArtifactRetention:
    """Removes the files of jobs' output folders. keep_days: days after a job's end; 0: keep them for ever."""

    store: Store
    blobs: BlobFiles
    keep_days: float
    clock: Callable[[], float]
    log: logging.Logger

    async def run(self) -> None:
        """Remove what is due until cancelled. For a service that has just become the leader."""
        began_at = self.clock()

        async def remove() -> int:
            if self.clock() >= began_at + _REPORTED_WITHIN_S:
                await self.remove_unreported()
            return await self.sweep() if self.keep_days else 0

        await _repeat(remove, "old files of jobs", self.log)

    async def remove_unreported(self) -> None:
        """Remove files that were sent but never reported: the agent or this service died in between."""
        for job_id in await asyncio.to_thread(self.blobs.outputs):
            known, files = self.store.artifacts.blobs(job_id), self.blobs.output_of(job_id)
            await self._remove_others(job_id, StorageKind.FILES, files, known)
        for job_id in await asyncio.to_thread(self.blobs.jobs):
            known, files = self.store.snapshots.blobs(job_id), self.blobs.of_job(job_id)
            await self._remove_others(job_id, StorageKind.SNAPSHOTS, files, known)

    async def _remove_others(
        self, job_id: int, kind: StorageKind, files: BlobFiles, known: frozenset[str]
    ) -> None:
        """Remove all files of a job but `known`. Rows go first: a file without a row is found again."""
        others = {*await asyncio.to_thread(files.older_than, _REPORTED_WITHIN_S)} - known
        if others:
            self.store.storage.remove(job_id, kind, others)
            await asyncio.to_thread(files.remove_old, others, _REPORTED_WITHIN_S)

    async def sweep(self) -> int:
        """Remove the files of some jobs; return the number of jobs."""
        due = self.store.artifacts.ended_before(self.clock() - self.keep_days * DAY_S, _JOBS_AT_ONCE)
        for job_id in due:
            # Rows go last: a service that is killed in between finds the job again.
            await asyncio.to_thread(self.blobs.remove_output, job_id)
            self.store.artifacts.forget(job_id)
        if due:
            self.log.info("removed the files of %s jobs that ended %g days ago", len(due), self.keep_days)
        return len(due)


@dataclass(frozen=True)
class JobRetention:
    """Removes the payload, bundle, result, snapshots and logs of jobs, and blobs that no job names.

    keep_days: days after a job's end; 0: for ever. Rows go first: a file without a row is found again.
    Series stay as long as the job's row, if they are small: people compare with old runs.
    """

    store: Store
    blobs: BlobFiles
    logs: JobLogs
    runs: RunFiles
    keep_days: float
    clock: Callable[[], float]
    log: logging.Logger

    async def run(self) -> None:
        """Remove what is due until cancelled. For a service that has just become the leader."""
        began_at = self.clock()

        async def remove() -> int:
            removed = await self.remove_old()
            if removed < _JOBS_AT_ONCE:
                await self.remove_left()
                if self.clock() >= began_at + _REPORTED_WITHIN_S:
                    await self.remove_unnamed()
            return removed

        await _repeat(remove, "remains of old jobs", self.log)

    async def remove_old(self) -> int:
        """Remove some jobs' data; return the number of jobs. No job names their blobs any more."""
        if not self.keep_days:
            return 0
        now = self.clock()
        due = self.store.old_jobs.ended_before(now - self.keep_days * DAY_S, _JOBS_AT_ONCE)
        if due:
            self.store.old_jobs.forget(due, now)
            await self._remove(due)
            self.log.info("removed what %s jobs left that ended %g days ago", len(due), self.keep_days)
        return len(due)

    async def remove_left(self) -> None:
        """Remove the files of jobs whose rows a service removed before it was killed."""
        there = {*await asyncio.to_thread(self.logs.jobs), *await asyncio.to_thread(self.blobs.jobs)}
        for some in portions(sorted(there)):
            await self._remove(self.store.old_jobs.forgotten(some))
        for some in portions(await asyncio.to_thread(self.runs.jobs)):
            for job_id in self.store.runs.unknown(some):
                await asyncio.to_thread(self.runs.remove, job_id)

    async def remove_unnamed(self) -> None:
        """Remove the blobs that no job names: their rows, then all files without a row."""
        named = AT_ONCE
        while named == AT_ONCE:
            named = self.store.old_jobs.name_blobs(AT_ONCE)
            await asyncio.sleep(0)
        self.store.blobs.drop_loose(self.clock() - _UNNAMED_S)
        for some in portions(await asyncio.to_thread(self.blobs.older_than, _UNNAMED_S)):
            unknown = self.store.blobs.unknown(some)
            await asyncio.to_thread(self.blobs.remove_old, unknown, _UNNAMED_S)

    async def _remove(self, job_ids: Sequence[int]) -> None:
        for job_id in job_ids:
            await asyncio.to_thread(self.logs.remove, job_id)
            await asyncio.to_thread(self.blobs.remove_own, job_id)
            await asyncio.to_thread(self.runs.remove_large, job_id)


@dataclass(frozen=True)
class JobRemoval:
    """Removes a finished job's data. Rows go first: JobRetention finds files that are left."""

    store: Store
    blobs: BlobFiles
    logs: JobLogs
    runs: RunFiles
    storage: Storage

    async def remove(self, job: JobRecord, by: str, now: float) -> None:
        """Remove its cell, result, snapshots, files, output and series. Its row and its events stay."""
        # Only once: jobs of an earlier release name their blobs only in their specs.
        while await asyncio.to_thread(self.store.old_jobs.name_blobs, AT_ONCE) == AT_ONCE:
            pass
        gone = self.store.storage.remove_job(job.id, by, now)
        self.storage.forget(job.owner)
        for number, sha256 in enumerate(gone):
            # No await between check and removal: an upload of the same blob writes its row at its end.
            if not self.storage.is_coming(sha256) and self.store.blobs.unknown((sha256,)):
                self.blobs.remove(sha256)
            if number % _FILES_AT_ONCE == 0:
                await asyncio.sleep(0)
        for remove in (self.logs.remove, self.blobs.remove_own, self.blobs.remove_output, self.runs.remove):
            await asyncio.to_thread(remove, job.id)
