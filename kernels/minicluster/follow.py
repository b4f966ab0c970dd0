"""Following a job to its end: events come in a thread, the screen is drawn at most 20 times a second."""

from __future__ import annotations

import queue
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from .client import Service
from .connection import ServiceError
from .failures import JobStopped
from .sse import Ended, follow
from .view import RunView
from .wire import Job

_DRAW_EVERY_S = 0.05
_END_WITHIN_S = 60.0
_QUEUED_EVENTS = 2000


class Screen(Protocol):
    """Where a running job is shown. `show` is called at most 20 times a second, `end` once."""

    def show(self, view: RunView, now: float) -> None: ...

    def end(self, view: RunView, now: float) -> None: ...


class StopRequests:
    """How often the user asked for a stop. `ask` may be called from any thread and any signal."""

    def __init__(self) -> None:
        self.count = 0

    def ask(self) -> None:
        self.count += 1


class Follower:
    """Shows a job until it is over, and passes on the user's wish to stop it."""

    def __init__(self, service: Service, view: RunView, stops: StopRequests) -> None:
        self._service = service
        self._view = view
        self._stops = stops
        self._events: queue.Queue[Any] = queue.Queue(_QUEUED_EVENTS)
        self._stops_seen = 0
        self._give_up_at = float("inf")
        self._over = threading.Event()

    def run(self, screen: Screen) -> Job:
        """Follow to the end and return the job as it ended.

        Raises ServiceError when the service says no, JobStopped when a stopped job takes too long.
        """
        threading.Thread(target=self._read, name="minicluster-events", daemon=True).start()
        try:
            return self._loop(screen)
        finally:
            self._over.set()
            screen.end(self._view, time.time())

    def _loop(self, screen: Screen) -> Job:
        drawn_at = 0.0
        while True:
            ended = self._take(time.monotonic() + _DRAW_EVERY_S)
            if self._stops.count > self._stops_seen:
                self._stop()
            if isinstance(ended, Ended):
                return ended.job
            if isinstance(ended, Exception):
                raise ended
            if time.monotonic() > self._give_up_at:
                job_id = self._view.job.id
                raise JobStopped(f"job {job_id} is still ending. Look again: %distribute attach {job_id}")
            if time.monotonic() - drawn_at >= _DRAW_EVERY_S:
                screen.show(self._view, time.time())
                drawn_at = time.monotonic()

    def _take(self, until: float) -> Ended | Exception | None:
        """Apply events until a moment; return early with what ends the loop."""
        while (left_s := until - time.monotonic()) > 0:
            try:
                event = self._events.get(timeout=left_s)
            except queue.Empty:
                return None
            if isinstance(event, Exception):
                return event
            self._view.apply(event)
            if isinstance(event, Ended):
                return event
        return None

    def _read(self) -> None:
        try:
            for event in follow(self._service, self._view.job.id):
                if not self._put(event):
                    return
        except Exception as error:
            # Told in the notebook's own thread.
            self._put(error)

    def _put(self, event: object) -> bool:
        while not self._over.is_set():
            try:
                self._events.put(event, timeout=0.5)
            except queue.Full:
                continue
            return True
        return False

    def _stop(self) -> None:
        again = self._stops_seen > 0
        self._stops_seen = self._stops.count
        if again:
            self._view.notice = "Already stopping: ranks that do not end by themselves are killed after 5 s"
            return
        self._view.notice = "Stopping: ranks have 4 s to end by themselves, and 1 s more after SIGTERM"
        self._give_up_at = time.monotonic() + _END_WITHIN_S
        threading.Thread(target=self._send_stop, name="minicluster-stop", daemon=True).start()

    def _send_stop(self) -> None:
        try:
            self._service.stop(self._view.job.id)
        except ServiceError as error:
            self._put(error)


@contextmanager
def interrupts_go_to(ask_stop: Callable[[], None]) -> Iterator[None]:
    """Let the kernel's interrupt (Ctrl-C) ask for a stop instead of breaking into the work."""
    if threading.current_thread() is not threading.main_thread():
        # Signals are the main thread's; a cell in a subshell has the Stop button.
        yield
        return
    before = signal.signal(signal.SIGINT, lambda *_: ask_stop())
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
