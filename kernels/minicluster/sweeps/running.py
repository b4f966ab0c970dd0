"""A sweep's run, as the notebook does it: submit the cell once, show its trials until the sweep is over."""

from __future__ import annotations

import queue
import sys
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from typing import Any

from minicluster.cell_run import RunContext, capture_cell, fetch_result, upload
from minicluster.client.connection import ServiceError
from minicluster.interrupts import StopRequests, interrupts_go_to
from minicluster.sweeps.calls import SweepCalls
from minicluster.sweeps.options import SweepOptions
from minicluster.sweeps.results import Sweep
from minicluster.sweeps.view import best_line, mime_bundle, sweep_title
from minicluster.wire.sweeps.sweeps import SweepDetails, SweepSubmit

_LOOK_S = 0.1
_ASK_EVERY_S = 0.3
_DRAW_EVERY_S = 0.5
_AGAIN_S = 1.0
_END_WITHIN_S = 60.0


class SweepContinues(KeyboardInterrupt):
    """The kernel ends while a sweep runs; the sweep goes on."""

    def __init__(self, sweep_id: int) -> None:
        self.message = (
            f"The kernel ends, sweep {sweep_id} goes on. Show it again: %distribute attach sweep-{sweep_id}"
        )
        super().__init__(self.message)

    def _render_traceback_(self) -> list[str]:
        return [self.message]


def run_sweep(source: str, filename: str, options: SweepOptions, context: RunContext, plain: bool) -> Sweep:
    """Run a cell as a sweep; return it when it is over, or at once with --detach. Raises as `run_cell`.

    An interrupt stops the sweep and its trials; what they found so far is returned.
    """
    captured, cell = capture_cell(source, filename, options.cell, context)
    uploaded = upload(captured, cell, options.cell, context)
    request = SweepSubmit(
        idempotency_key=uuid.uuid4().hex,
        spec=uploaded.spec,
        settings=options.settings,
        run=uploaded.origin,
    )
    calls, stops = SweepCalls(context.service), StopRequests(context.kernel)
    with interrupts_go_to(stops.interrupt):
        sweep = calls.submit(request)
        if options.cell.detach:
            return opened(sweep.id, context)
        return follow(sweep.id, context, stops, plain)


def opened(sweep_id: int, context: RunContext) -> Sweep:
    """Return a sweep as it is now."""
    calls = SweepCalls(context.service)
    return Sweep(calls, calls.sweep(sweep_id), lambda job_id: fetch_names(job_id, context))


def fetch_names(job_id: int, context: RunContext) -> Mapping[str, Any]:
    """Return the objects of a trial's result; the notebook's own objects stay as they are."""
    job = context.service.job(job_id)
    result = fetch_result(job, context)
    return {**result.late, **result.names}


def attach_sweep(sweep_id: int, context: RunContext, plain: bool) -> Sweep:
    """Show a sweep until it is over."""
    stops = StopRequests(context.kernel)
    with interrupts_go_to(stops.interrupt):
        return follow(sweep_id, context, stops, plain)


def follow(sweep_id: int, context: RunContext, stops: StopRequests, plain: bool) -> Sweep:
    """Show a sweep until it is over. Raises ServiceError, KernelShutdown."""
    calls = SweepCalls(context.service)
    screen = _TextScreen() if plain else _HtmlScreen(calls.page(sweep_id))
    follower = _Follower(calls, sweep_id, stops)
    details = follower.run(screen.show)
    screen.show(details)
    return Sweep(calls, details, lambda job_id: fetch_names(job_id, context))


class _Follower:
    """Reads a sweep's changes in a thread, so that an interrupt is seen at once."""

    def __init__(self, calls: SweepCalls, sweep_id: int, stops: StopRequests) -> None:
        self._calls = calls
        self._sweep_id = sweep_id
        self._stops = stops
        self._news: queue.SimpleQueue[SweepDetails | ServiceError] = queue.SimpleQueue()
        self._over = threading.Event()

    def run(self, show: Callable[[SweepDetails], None]) -> SweepDetails:
        details = self._calls.sweep(self._sweep_id)
        threading.Thread(
            target=self._read, args=(details.version,), daemon=True, name="minicluster-sweep"
        ).start()
        stopping, drawn_at, dirty, give_up_at = False, 0.0, True, float("inf")
        try:
            while not details.sweep.state.over:
                if dirty and time.monotonic() - drawn_at >= _DRAW_EVERY_S:
                    show(details)
                    drawn_at, dirty = time.monotonic(), False
                if (news := self._next()) is not None:
                    details, dirty = news, True
                if self._stops.certain and not stopping:
                    stopping, give_up_at = True, time.monotonic() + _END_WITHIN_S
                    self._calls.stop(self._sweep_id)
                self._stay(details)
                if time.monotonic() > give_up_at:
                    break
        finally:
            self._over.set()
        return details

    def _stay(self, details: SweepDetails) -> None:
        """Report that the kernel is busy, or leave if it ends: the sweep goes on."""
        kernel = self._stops.kernel
        if kernel.ends:
            raise SweepContinues(self._sweep_id)
        if details.trials:
            kernel.stay_busy(details.trials[-1].job, details.trials[-1].created_at)

    def _next(self) -> SweepDetails | None:
        try:
            news = self._news.get(timeout=_LOOK_S)
        except queue.Empty:
            return None
        if isinstance(news, ServiceError):
            raise news
        return news

    def _read(self, have: str) -> None:
        while not self._over.is_set():
            try:
                details = self._calls.sweep(self._sweep_id, have)
            except ServiceError as error:
                if not error.retryable and error.code != "unreachable":
                    self._news.put(error)
                    return
                time.sleep(_AGAIN_S)
                continue
            if details.version != have:
                have = details.version
                self._news.put(details)
            if details.sweep.state.over:
                return
            time.sleep(_ASK_EVERY_S)


class _HtmlScreen:
    """Shows a sweep as one output that is updated. page: the sweep's address for browsers."""

    def __init__(self, page: str) -> None:
        self._page = page
        self._handle: Any = None

    def show(self, details: SweepDetails) -> None:
        from IPython.display import display

        shown = mime_bundle(details, self._page)
        if self._handle is None:
            self._handle = display(shown, raw=True, display_id=True)
        else:
            self._handle.update(shown, raw=True)


class _TextScreen:
    """Prints a line when the counts of trials or the best one change."""

    def __init__(self) -> None:
        self._last = ""

    def show(self, details: SweepDetails) -> None:
        text = f"[{sweep_title(details.sweep)}] {best_line(details.sweep)}"
        if text != self._last:
            self._last = text
            sys.stdout.write(text + "\n")
            sys.stdout.flush()
