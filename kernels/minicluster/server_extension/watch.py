"""All jobs that the pages of this server look at: each followed once, and told to its pages in one rhythm."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Mapping

from minicluster.client.client import Service
from minicluster.server_extension.watched_job import JobKey, PageReader, WatchedJob

_PUBLISH_EVERY_S = 0.1
_BEAT_EVERY_S = 10.0
_MOST_JOBS = 64


class WatchedJobs:
    """connect: makes the connection to a cluster by its address."""

    def __init__(self, connect: Callable[[str], Service]) -> None:
        self._connect = connect
        self._jobs: dict[JobKey, WatchedJob] = {}
        self._readers: set[PageReader] = set()
        self._publishing: asyncio.Task[None] | None = None

    def show(self, reader: PageReader, keys: Mapping[JobKey, bool]) -> None:
        """Tell a page of these jobs from now on, and of no others.

        keys: with whether a kernel still writes the output of the job's cell in this page.
        """
        self._readers.add(reader)
        for key, job in list(self._jobs.items()):
            if key not in keys:
                self._leave(reader, key, job)
        for key, live in keys.items():
            job = self._jobs.get(key) or self._follow(key, reader)
            if job is not None:
                job.add(reader, live)
        self._publishing = self._publishing or asyncio.create_task(self._publish())

    def keep(self, reader: PageReader, key: JobKey, waited: bool | None) -> None:
        """Answer a page that asks what of a job's end is to stay in its notebook."""
        if key in self._jobs:
            self._jobs[key].keep(reader, time.time(), waited)

    def leave(self, reader: PageReader) -> None:
        """Forget a page that was closed."""
        self._readers.discard(reader)
        for key, job in list(self._jobs.items()):
            self._leave(reader, key, job)

    def _leave(self, reader: PageReader, key: JobKey, job: WatchedJob) -> None:
        job.remove(reader)
        if not job.readers:
            del self._jobs[key]

    def _follow(self, key: JobKey, reader: PageReader) -> WatchedJob | None:
        if len(self._jobs) >= _MOST_JOBS:
            refused = {"message": f"this server shows {_MOST_JOBS} jobs already", "code": "too_many"}
            reader.tell({"service": key.service, "job": key.job, "made": key.made, "refused": refused})
            return None
        job = self._jobs[key] = WatchedJob(key)
        job.add(reader)
        name = f"minicluster-job-{key.job}"
        threading.Thread(target=job.follow, args=(self._connect,), name=name, daemon=True).start()
        return job

    async def _publish(self) -> None:
        beat_at = time.monotonic()
        while self._readers:
            for job in list(self._jobs.values()):
                job.publish(time.time())
            if time.monotonic() - beat_at >= _BEAT_EVERY_S:
                beat_at = time.monotonic()
                for reader in list(self._readers):
                    reader.tell({"beat": True})
            await asyncio.sleep(_PUBLISH_EVERY_S)
        self._publishing = None
