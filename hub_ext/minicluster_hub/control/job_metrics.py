"""Counts jobs as they start and end, for the metrics."""

from __future__ import annotations

import logging
from typing import Protocol

from minicluster.wire import JobState
from minicluster_hub.support.notifier import Bell
from minicluster_hub.jobs.records import EventRecord, JobRecord
from minicluster_hub.store import Store, StoreError


class JobTally(Protocol):
    """What is told of jobs."""

    def job_started(self, story: list[EventRecord]) -> None: ...

    def job_ended(self, state: JobState) -> None: ...


class JobWatch:
    """Tells each start and each end of a job once, whatever rings how often."""

    def __init__(self, store: Store, tally: JobTally, log: logging.Logger) -> None:
        self._store = store
        self._tally = tally
        self._log = log
        self._open = {job.id: job.state is not JobState.QUEUED for job in store.world().jobs}

    async def run(self, changes: Bell) -> None:
        async with changes.listen() as listener:
            while True:
                self._look([key for key in await listener.wait(None) if isinstance(key, int)])

    def _look(self, job_ids: list[int]) -> None:
        try:
            for record in self._store.jobs_by_id(job_ids):
                self._tell(record)
        except StoreError:
            self._log.warning("jobs %s are not in the metrics: the store did not answer", job_ids[:9])

    def _tell(self, record: JobRecord) -> None:
        """Note that a job which ended before the watch began is in no table and counts no more."""
        if record.state.terminal and record.id not in self._open:
            return
        started = self._open.setdefault(record.id, False)
        if not started and record.started_at is not None:
            self._tally.job_started(self._store.events(record.id))
            self._open[record.id] = True
        if record.state.terminal:
            self._tally.job_ended(record.state)
            del self._open[record.id]
