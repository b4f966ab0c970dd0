"""Removes what is large of jobs that ended long ago, and blobs that no job names.

Rows first: a file without a row is found again by the next look, so a service may be killed in between.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from minicluster_hub.storage.artifacts import DAY_S
from minicluster_hub.storage.blobs import BlobFiles
from minicluster_hub.storage.logs import JobLogs
from minicluster_hub.store import Store, StoreError

_LOOK_EACH_S = 3600.0
_WAITED_FOR_S = 3600.0
"""For agents and notebooks that waited for the service, to tell of the blobs that they sent before."""
_LOOSE_S = DAY_S
"""How long a blob stays that no job names, from when it came or was last asked for."""
_JOBS_AT_ONCE = 20
_PAUSE_S = 1.0
_AT_ONCE = 500
_T = TypeVar("_T")


@dataclass(frozen=True)
class OldJobsRemoval:
    """keep_days: of a job's payload, bundle, result, snapshots and logs, from its end on; 0: for ever."""

    store: Store
    blobs: BlobFiles
    logs: JobLogs
    keep_days: float
    clock: Callable[[], float]
    log: logging.Logger

    async def run(self) -> None:
        """Remove what is due until cancelled. It begins with a service that leads."""
        heard_at = self.clock() + _WAITED_FOR_S
        while True:
            forgotten = 0
            try:
                forgotten = await self.forget_old()
                if forgotten < _JOBS_AT_ONCE:
                    await self.remove_left()
                    if self.clock() >= heard_at:
                        await self.remove_loose()
            except (StoreError, OSError) as error:
                self.log.warning("what is left of old jobs was not removed: %s", error)
            await asyncio.sleep(_PAUSE_S if forgotten == _JOBS_AT_ONCE else _LOOK_EACH_S)

    async def forget_old(self) -> int:
        """Remove what is large of some jobs; return of how many. Their blobs go as loose ones."""
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
        """Remove the files of jobs that were forgotten when the service was killed."""
        there = {*await asyncio.to_thread(self.logs.jobs), *await asyncio.to_thread(self.blobs.jobs)}
        for some in _portions(sorted(there)):
            await self._remove(self.store.old_jobs.forgotten(some))

    async def remove_loose(self) -> None:
        """Remove the blobs that no job names: their rows, then all files without a row."""
        named = _AT_ONCE
        while named == _AT_ONCE:
            named = self.store.old_jobs.name_blobs(_AT_ONCE)
            await asyncio.sleep(0)
        self.store.blobs.drop_loose(self.clock() - _LOOSE_S)
        for some in _portions(await asyncio.to_thread(self.blobs.older_than, _LOOSE_S)):
            unknown = self.store.blobs.unknown(some)
            await asyncio.to_thread(self.blobs.remove_old, unknown, _LOOSE_S)

    async def _remove(self, job_ids: Sequence[int]) -> None:
        for job_id in job_ids:
            await asyncio.to_thread(self.logs.remove, job_id)
            await asyncio.to_thread(self.blobs.remove_own, job_id)


def _portions(values: Sequence[_T]) -> Iterator[Sequence[_T]]:
    """Yield the values by portions that a statement takes."""
    return (values[start : start + _AT_ONCE] for start in range(0, len(values), _AT_ONCE))
