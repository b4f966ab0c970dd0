"""One job, followed in a thread of its own on behalf of all pages and panels that show it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from minicluster.client.client import Service
from minicluster.client.connection import ServiceError
from minicluster.client.sse import follow
from minicluster.display.render import mime_bundle
from minicluster.display.view import RunView
from minicluster.errors import MiniclusterError
from minicluster.runs import job_page
from minicluster.wire import JobState

_AGAIN_AFTER_S = 5.0


@dataclass(frozen=True)
class JobKey:
    """A job as a notebook names it. service: its cluster's address. made: when it was submitted.

    Another cluster at the same address, or one that began anew, has another job of this number.
    """

    service: str
    job: int
    made: float


class PageReader(Protocol):
    """A page. `tell` takes a message, and says whether it has time for more."""

    def tell(self, message: dict[str, Any]) -> bool: ...


class WatchedJob:
    """What is known of a job, and who lacks it. `follow` is the thread's, the rest the event loop's.

    live: readers in whose page a kernel still writes the cell's output.
    """

    def __init__(self, key: JobKey) -> None:
        self.key = key
        self.readers: set[PageReader] = set()
        self.live: set[PageReader] = set()
        self._lacking: set[PageReader] = set()
        self._view: RunView | None = None
        self._refusal: dict[str, str] | None = None
        self._lock = threading.Lock()
        self._number = 0
        self._kept = False

    def add(self, reader: PageReader, live: bool = False) -> None:
        if reader not in self.readers:
            self.readers.add(reader)
            self._lacking.add(reader)
        self.live.add(reader) if live else self.live.discard(reader)

    def remove(self, reader: PageReader) -> None:
        self.readers.discard(reader)
        self.live.discard(reader)
        self._lacking.discard(reader)

    def follow(self, connect: Callable[[str], Service]) -> None:
        """Read the job's events until it ends or nobody looks; what is refused is for its readers, too."""
        while self.readers:
            try:
                self._follow(connect(self.key.service))
                return
            except MiniclusterError as error:
                away = getattr(error, "away", False)
                self._refuse(error.message, "unreachable" if away else getattr(error, "code", ""))
                if not away:
                    return
            except Exception as error:
                self._refuse(f"{type(error).__name__}: {error}", "failed")
                return
            time.sleep(_AGAIN_AFTER_S)

    def _follow(self, service: Service) -> None:
        job = service.job(self.key.job)
        if job.created_at != self.key.made:
            raise ServiceError(f"job {job.id} of this cluster is another one", code="unknown_job")
        view = RunView(job, service.browser_path(job_page(job.id)))
        with self._lock:
            self._view, self._refusal = view, None
            self._lacking = set(self.readers)
        for event in follow(service, job.id, lambda: not self.readers):
            with self._lock:
                view.apply(event)

    def _refuse(self, message: str, code: str) -> None:
        with self._lock:
            self._view, self._refusal = None, {"message": message, "code": code}
            self._lacking = set(self.readers)

    def keep(self, reader: PageReader, now: float, waited: bool | None = None) -> None:
        """Give a page the picture of the end for its notebook; one page alone: two would write one file.

        None gets it while a kernel writes into one of them. waited: whether a kernel takes the results, None
        when the page does not know it.
        """
        with self._lock:
            view = self._view
            if view is None or not view.job.state.terminal or self._kept or self.live:
                return
            self._kept = True
            if view.job.state is JobState.SUCCEEDED:
                view.about_results = _about_results(waited, view.job.id)
            self._tell({"picture": mime_bundle(view, now)}, {reader})

    def publish(self, now: float) -> None:
        """Tell each reader what it lacks."""
        with self._lock:
            if self._refusal is not None:
                self._tell({"refused": self._refusal}, set(self._lacking))
            elif self._view is not None:
                self._tell_change(self._view, now)

    def _tell_change(self, view: RunView, now: float) -> None:
        change = view.change(now)
        if change:
            self._number += 1
            self._tell({"change": {**change, "number": self._number}}, self.readers - self._lacking)
        if self._lacking:
            whole = {**view.snapshot(now), "number": self._number}
            self._tell({"change": whole}, set(self._lacking))

    def _tell(self, message: dict[str, Any], readers: set[PageReader]) -> None:
        """Send to some readers; who is too slow gets everything later in place of each step."""
        for reader in readers:
            if reader.tell({**asdict(self.key), **message}):
                self._lacking.discard(reader)
            else:
                self._lacking.add(reader)


def _about_results(waited: bool | None, job_id: int) -> str:
    """Say how to bring the results where no kernel has brought them."""
    if waited:
        return ""
    when = "No kernel waited for its results" if waited is False else "If results are missing in the notebook"
    return f"{when}: %distribute result {job_id}"
