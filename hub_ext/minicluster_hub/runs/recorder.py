"""Keeps the files of series and the last values in the store up to date while jobs run."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from minicluster.wire import LISTED_METRICS, LastValue, RunMetrics
from minicluster_hub.runs.recording import read_records
from minicluster_hub.runs.series import SeriesFile, last_values
from minicluster_hub.storage.logs import JobLogs
from minicluster_hub.storage.run_files import RunFiles
from minicluster_hub.store import Store, StoreError
from minicluster_hub.support.notifier import Notifier, Subscription

_PAUSE_S = 1.0
"""Least time between two updates of one run: records come many times a second."""
_REMEMBERED = 1000


@dataclass(frozen=True, slots=True)
class NewMetrics:
    """The key of a notification. owner: of the run."""

    job_id: int
    owner: str


class Recorder:
    """`changes` notifies of new points by NewMetrics. For the service's event loop.

    The files follow from the streams of records alone: a reader brings them up to date before it reads, so
    that a restarted service, or one that was too busy, has lost nothing.
    """

    def __init__(self, store: Store, logs: JobLogs, files: RunFiles, log: logging.Logger) -> None:
        self.changes = Notifier()
        self.files = files
        self._store, self._logs, self._log = store, logs, log
        self._new = Subscription()
        self._pending: set[int] = set()
        self._newest: dict[int, RunMetrics] = {}
        self._locks: defaultdict[int, asyncio.Lock] = defaultdict(asyncio.Lock)

    def notify(self, job_id: int) -> None:
        """Note that ranks of a job sent records."""
        self._pending.add(job_id)
        self._new.notify(job_id)

    async def run(self) -> None:
        """Update the runs with new records until cancelled. For the leader only."""
        while True:
            for job_id in await self._new.wait(None):
                if isinstance(job_id, int):
                    await self._update_and_log(job_id)
            await asyncio.sleep(_PAUSE_S)

    async def catch_up(self, job_ids: Iterable[int]) -> None:
        """Bring the last values of these jobs up to date, as far as records came that were not read yet."""
        for job_id in job_ids:
            if job_id in self._pending or job_id in self._locks:
                await self._update_and_log(job_id)

    async def current(self, job_id: int) -> SeriesFile:
        """Return a run's series with all records that came so far. Raises sqlite3.Error, StoreError."""
        await self.update(job_id)
        return SeriesFile(self.files.path(job_id))

    async def update(self, job_id: int) -> None:
        """Read a job's new records. Raises sqlite3.Error, StoreError."""
        self._pending.discard(job_id)
        job = self._store.job(job_id)
        if job is None or job.removed_at is not None:
            return
        file = SeriesFile(self.files.path(job_id))
        lock = self._locks[job_id]
        async with lock:
            if await asyncio.to_thread(read_records, self._logs, job_id, job.attempts, file):
                series = await asyncio.to_thread(file.series)
                found = list(last_values(series).values())[:LISTED_METRICS]
                values = {
                    one.name: LastValue(value=one.last, step=one.last_step, low=one.low, high=one.high)
                    for one in found
                }
                self._store.runs.set_metrics(job_id, values)
                self._store.runs.count_series(job.owner, job_id, self.files.size_bytes(job_id))
                self._remember(RunMetrics(run=job_id, metrics=values))
                self.changes.notify(NewMetrics(job_id, job.owner))
        if not lock.locked():
            self._locks.pop(job_id, None)

    def newest(self, job_id: int) -> RunMetrics | None:
        """Return the values that a notification was about; None if it was long ago."""
        return self._newest.get(job_id)

    def _remember(self, metrics: RunMetrics) -> None:
        self._newest.pop(metrics.run, None)
        self._newest[metrics.run] = metrics
        if len(self._newest) > _REMEMBERED:
            del self._newest[next(iter(self._newest))]

    async def _update_and_log(self, job_id: int) -> None:
        try:
            await self.update(job_id)
        except (sqlite3.Error, StoreError, OSError) as error:
            self._log.warning("the metrics of job %s were not stored: %s", job_id, error)
