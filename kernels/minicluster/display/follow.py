"""Follows a job to its end: a thread reads events; the screen is drawn at most 20 times a second."""

from __future__ import annotations

import queue
import threading
import time
from typing import Any, NoReturn, Protocol

from minicluster.client.client import JobServiceClient
from minicluster.client.connection import ServiceError
from minicluster.client.sse import Ended, follow
from minicluster.display.failures import JobStopped, KernelShutdown
from minicluster.display.view import RunView
from minicluster.interrupts import StopRequests
from minicluster.wire import Job

_DRAW_EVERY_S = 0.05
_END_WITHIN_S = 60.0
_SENT_WITHIN_S = 2.0
"""At a shutdown, a kernel manager kills a kernel that is still busy after 2.5 s; this must be less."""
_QUEUED_EVENTS = 2000
_STOPPING = "Stopping: ranks have 4 s to end by themselves, and 1 s more after SIGTERM"
_INTERRUPTING = "Interrupting. If the cell does not end, %distribute down ends its session"
_STOPPING_ALREADY = "Already stopping: ranks that do not end by themselves are killed after 5 s"


def stop(service: JobServiceClient, job: Job) -> None:
    """Stop a job; of a session's cell, interrupt that cell: the session stays."""
    if job.cell_number:
        service.interrupt_cell(job.id, job.cell_number)
    else:
        service.stop(job.id)


class Screen(Protocol):
    """Shows a running job. `show` is called at most 20 times a second, `end` once."""

    def show(self, view: RunView, now: float) -> None: ...

    def end(self, view: RunView, now: float) -> None: ...


class Follower:
    """Shows a job until it ends; forwards the user's stop request to the service."""

    def __init__(self, service: JobServiceClient, view: RunView, stops: StopRequests) -> None:
        self._service = service
        self._view = view
        self._stops = stops
        self._events: queue.Queue[Any] = queue.Queue(_QUEUED_EVENTS)
        self._stops_seen = 0
        self._stopping: threading.Thread | None = None
        self._give_up_at = float("inf")
        self._over = threading.Event()

    def run(self, screen: Screen) -> Job:
        """Follow the job to its end and return its final state.

        Raises ServiceError when the service refuses, JobStopped when a stopped job does not end in time,
        KernelShutdown when the kernel ends before the job.
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
            if ended is None:
                self._take_stop_request()
            if isinstance(ended, Ended):
                return ended.job
            if isinstance(ended, Exception):
                raise ended
            if time.monotonic() > self._give_up_at:
                raise self._still_ending()
            if time.monotonic() - drawn_at >= _DRAW_EVERY_S:
                screen.show(self._view, time.time())
                drawn_at = time.monotonic()

    def _take(self, until: float) -> Ended | Exception | None:
        """Apply events until this time, or return early with the last event or an error."""
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
            cell = self._view.job.cell_number
            for event in follow(self._service, self._view.job.id, cell=cell, with_result=not cell):
                if not self._put(event):
                    return
        except Exception as error:
            # The loop raises it in the notebook's thread.
            self._put(error)

    def _put(self, event: object) -> bool:
        while not self._over.is_set():
            try:
                self._events.put(event, timeout=0.5)
            except queue.Full:
                continue
            return True
        return False

    def _take_stop_request(self) -> None:
        """Show a stop request at once; send it once it is certain that the kernel is not shutting down."""
        # Read before the count: an interrupt always precedes a shutdown.
        ends = self._stops.kernel.ends
        if self._stops.count > self._stops_seen:
            self._stops_seen = self._stops.count
            self._view.notice = self._about_stop()
        if self._stops.certain and self._stopping is None:
            self._give_up_at = time.monotonic() + _END_WITHIN_S
            self._stopping = threading.Thread(target=self._send_stop, name="minicluster-stop", daemon=True)
            self._stopping.start()
        if ends:
            self._leave()
        self._stops.kernel.stay_busy(self._view.job.id, self._view.job.created_at)

    def _about_stop(self) -> str:
        if self._view.job.cell_number:
            return _INTERRUPTING
        return _STOPPING_ALREADY if self._stopping else _STOPPING

    def _leave(self) -> NoReturn:
        if self._stopping is not None:
            self._stopping.join(_SENT_WITHIN_S)
            raise self._still_ending()
        error = KernelShutdown(self._view.job)
        self._view.notice = error.message
        raise error

    def _still_ending(self) -> JobStopped:
        job = self._view.job
        what = f"cell {job.cell_number} of session {job.id}" if job.cell_number else f"job {job.id}"
        return JobStopped(f"{what} is still ending. Look again: %distribute attach {job.id}")

    def _send_stop(self) -> None:
        try:
            stop(self._service, self._view.job)
        except ServiceError as error:
            self._put(error)
