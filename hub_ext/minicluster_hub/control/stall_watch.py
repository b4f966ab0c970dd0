"""Tells a job's owner, once per stall, that ranks of the job make no progress, and why."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from minicluster.wire import JobState
from minicluster.wire.limits import shortened
from minicluster_hub.control.status_cache import StatusCache
from minicluster_hub.diagnosis.explanation import Explanation
from minicluster_hub.diagnosis.why import explain
from minicluster_hub.store import Store, StoreError

STALLED = "stalled"
STALLS_OF_JOB = 64
"""Per job: a hostile agent could report its ranks as stalled and not stalled many times in a second."""
_MOST_CHARS = 4000
"""Most characters of the explanation. It contains names of the job's functions, of any length."""


class StallWatch:
    """Finds out why jobs stall, writes the reason into their history, and shows it while the stall lasts."""

    def __init__(
        self, store: Store, status_cache: StatusCache, clock: Callable[[], float], log: logging.Logger
    ) -> None:
        self._store = store
        self._status_cache = status_cache
        self._clock = clock
        self._log = log
        self._began_at = clock()
        self._looking: dict[int, asyncio.Task[None]] = {}

    async def run(self) -> None:
        """Watch until cancelled."""
        try:
            async with self._status_cache.stack_dumps.notifier.listen() as subscription:
                while True:
                    for key in await subscription.wait(None):
                        if isinstance(key, int):
                            self._changed(key)
        finally:
            for look in self._looking.values():
                look.cancel()

    def _changed(self, job_id: int) -> None:
        if not self._status_cache.stack_dumps.is_stalled(job_id):
            self._status_cache.annotate(job_id, "")
        elif job_id not in self._looking:
            look = self._looking[job_id] = asyncio.create_task(self._tell(job_id))
            look.add_done_callback(lambda _: self._looking.pop(job_id, None))

    async def _tell(self, job_id: int) -> None:
        why = explain(await self._status_cache.stacks(job_id))
        if not self._status_cache.stack_dumps.is_stalled(job_id):
            return
        self._log.info("job %s makes no progress: %s", job_id, why.sentence)
        self._status_cache.annotate(job_id, words(why))
        try:
            self._keep(job_id, words(why))
        except StoreError as error:
            self._log.warning("job %s: the stall was not written into its history: %s", job_id, error)

    def _keep(self, job_id: int, text: str) -> None:
        record = self._store.job(job_id)
        if record is None or record.state is not JobState.RUNNING:
            return
        last = self._store.history.last_event(job_id)
        # After a restart of the service the same stall is reported again.
        if last and last.at < self._began_at and (last.kind, last.text) == (STALLED, text):
            return
        if self._store.history.count(job_id, STALLED) >= STALLS_OF_JOB:
            return
        self._store.note(job_id, STALLED, text, self._clock())
        self._status_cache.changes.notify(job_id)


def words(why: Explanation) -> str:
    """Return the explanation with what to do."""
    return shortened(f"{why.sentence} {why.hint}".strip(), _MOST_CHARS)
