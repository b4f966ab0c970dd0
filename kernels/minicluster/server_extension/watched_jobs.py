"""The jobs shown on this server's pages: one thread follows each job for all its panels."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from minicluster.cell_run import job_page
from minicluster.client.client import JobServiceClient
from minicluster.client.connection import ServiceError
from minicluster.client.sse import follow
from minicluster.display.render import mime_bundle
from minicluster.display.view import RunView
from minicluster.errors import MiniclusterError
from minicluster.wire import JobState

_AGAIN_AFTER_S = 5.0
_PUBLISH_EVERY_S = 0.1
_BEAT_EVERY_S = 10.0
_MOST_JOBS = 64


@dataclass(frozen=True)
class JobKey:
    """A notebook's reference to a job. service: its cluster's address. made: submission time.
    number: of a session's cell; 0: the job itself.

    The time is needed since a new database, or a new cluster at this address, reuses job numbers.
    """

    service: str
    job: int
    made: float
    number: int = 0


class PanelPage(Protocol):
    """A page. `tell` sends a message and returns False if the page cannot take it now."""

    def tell(self, message: dict[str, Any]) -> bool: ...


class WatchedJob:
    """A job and the pages that show it. `follow` runs in a thread, all else in the event loop.

    live: pages where a kernel still writes the cell's output.
    """

    def __init__(self, key: JobKey) -> None:
        self.key = key
        self.pages: set[PanelPage] = set()
        self.live: set[PanelPage] = set()
        self._lacking: set[PanelPage] = set()
        self._view: RunView | None = None
        self._refusal: dict[str, str] | None = None
        self._lock = threading.Lock()
        self._number = 0
        self._kept = False

    def add(self, page: PanelPage, live: bool = False) -> None:
        if page not in self.pages:
            self.pages.add(page)
            self._lacking.add(page)
        self.live.add(page) if live else self.live.discard(page)

    def remove(self, page: PanelPage) -> None:
        self.pages.discard(page)
        self.live.discard(page)
        self._lacking.discard(page)

    def follow(self, connect: Callable[[str], JobServiceClient]) -> None:
        """Read the job's events until it ends or no page shows it; pages also get the service's refusals."""
        while self.pages:
            try:
                self._follow(connect(self.key.service))
                return
            except MiniclusterError as error:
                retryable = getattr(error, "retryable", False)
                self._refuse(error.message, "unreachable" if retryable else getattr(error, "code", ""))
                if not retryable:
                    return
            except Exception as error:
                self._refuse(f"{type(error).__name__}: {error}", "failed")
                return
            time.sleep(_AGAIN_AFTER_S)

    def _follow(self, service: JobServiceClient) -> None:
        job = service.job(self.key.job)
        if job.created_at != self.key.made:
            raise ServiceError(f"job {job.id} of this cluster is another one", code="unknown_job")
        job = job.model_copy(update={"cell_number": self.key.number})
        view = RunView(job, service.browser_path(job_page(job.id)))
        with self._lock:
            self._view, self._refusal = view, None
            self._lacking = set(self.pages)
        for event in follow(service, job.id, lambda: not self.pages, self.key.number):
            with self._lock:
                view.apply(event)

    def _refuse(self, message: str, code: str) -> None:
        with self._lock:
            self._view, self._refusal = None, {"message": message, "code": code}
            self._lacking = set(self.pages)

    def keep(self, page: PanelPage, now: float, waited: bool | None = None) -> None:
        """Send the final picture to one page only: two pages would write the same notebook file.

        Send nothing while a kernel still writes the output in any page. waited: whether a kernel waited for
        the results; None if unknown.
        """
        with self._lock:
            view = self._view
            if view is None or not view.job.state.terminal or self._kept or self.live:
                return
            self._kept = True
            if view.job.state is JobState.SUCCEEDED and not self.key.number:
                view.about_results = _about_results(waited, view.job.id)
            self._tell({"picture": mime_bundle(view, now)}, {page})

    def publish(self, now: float) -> None:
        """Send each page the changes that it lacks."""
        with self._lock:
            if self._refusal is not None:
                self._tell({"refused": self._refusal}, set(self._lacking))
            elif self._view is not None:
                self._tell_change(self._view, now)

    def _tell_change(self, view: RunView, now: float) -> None:
        change = view.change(now)
        if change:
            self._number += 1
            self._tell({"change": {**change, "number": self._number}}, self.pages - self._lacking)
        if self._lacking:
            self._tell({"change": {**view.snapshot(now), "number": self._number}}, set(self._lacking))

    def _tell(self, message: dict[str, Any], pages: set[PanelPage]) -> None:
        """Send to these pages. A slow page later gets the full state instead of each change."""
        for page in pages:
            if page.tell({**asdict(self.key), **message}):
                self._lacking.discard(page)
            else:
                self._lacking.add(page)


def _about_results(waited: bool | None, job_id: int) -> str:
    """Return the command that fetches the results if no kernel waited for them."""
    if waited:
        return ""
    when = "No kernel waited for its results" if waited is False else "If results are missing in the notebook"
    return f"{when}: %distribute result {job_id}"


class WatchedJobs:
    """All jobs shown on pages. connect: returns the connection to the cluster at an address."""

    def __init__(self, connect: Callable[[str], JobServiceClient]) -> None:
        self._connect = connect
        self._jobs: dict[JobKey, WatchedJob] = {}
        self._pages: set[PanelPage] = set()
        self._publishing: asyncio.Task[None] | None = None

    def show(self, page: PanelPage, keys: Mapping[JobKey, bool]) -> None:
        """Send a page the changes of these jobs only.

        keys: jobs; True if a kernel still writes the job's output in this page.
        """
        self._pages.add(page)
        for key, job in list(self._jobs.items()):
            if key not in keys:
                self._leave(page, key, job)
        for key, live in keys.items():
            job = self._jobs.get(key) or self._follow(key, page)
            if job is not None:
                job.add(page, live)
        self._publishing = self._publishing or asyncio.create_task(self._publish())

    def keep(self, page: PanelPage, key: JobKey, waited: bool | None) -> None:
        """Send a page the final picture to save in its notebook."""
        if key in self._jobs:
            self._jobs[key].keep(page, time.time(), waited)

    def leave(self, page: PanelPage) -> None:
        """Forget a page that was closed."""
        self._pages.discard(page)
        for key, job in list(self._jobs.items()):
            self._leave(page, key, job)

    def _leave(self, page: PanelPage, key: JobKey, job: WatchedJob) -> None:
        job.remove(page)
        if not job.pages:
            del self._jobs[key]

    def _follow(self, key: JobKey, page: PanelPage) -> WatchedJob | None:
        if len(self._jobs) >= _MOST_JOBS:
            refused = {"message": f"this server shows {_MOST_JOBS} jobs already", "code": "too_many"}
            page.tell({**asdict(key), "refused": refused})
            return None
        job = self._jobs[key] = WatchedJob(key)
        job.add(page)
        name = f"minicluster-job-{key.job}"
        threading.Thread(target=job.follow, args=(self._connect,), name=name, daemon=True).start()
        return job

    async def _publish(self) -> None:
        beat_at = time.monotonic()
        while self._pages:
            for job in list(self._jobs.values()):
                job.publish(time.time())
            if time.monotonic() - beat_at >= _BEAT_EVERY_S:
                beat_at = time.monotonic()
                for page in list(self._pages):
                    page.tell({"beat": True})
            await asyncio.sleep(_PUBLISH_EVERY_S)
        self._publishing = None
