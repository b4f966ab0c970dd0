"""Whose interrupt it is: a person's, which stops the job, or the end of the kernel, which never does.

Before each shutdown and restart a kernel manager interrupts the kernel once, and right after that it asks for
the shutdown. That request is heard by another thread while the cell still runs. So an interrupt counts as a
person's when no such request has followed it for a moment, or when another interrupt has: only the last one
before the request can be the manager's.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

_ENDS_WITHIN_S = 1.0
_BUSY_AGAIN_S = 2.0


class NotebookKernel:
    """The process that runs the notebook's cells, or the terminal's shell: both are IPython shells."""

    def __init__(self, shell: Any) -> None:
        self._shell = shell
        self._kernel: Any = getattr(shell, "kernel", None)
        self._busy_at = time.monotonic()

    @property
    def managed(self) -> bool:
        """Whether a kernel manager stands between the person and this process."""
        return self._kernel is not None

    @property
    def ends(self) -> bool:
        """Whether its shutdown or restart was asked for."""
        return self.managed and bool(self._shell.exit_now)

    def stay_busy(self, job_id: int, made: float) -> None:
        """Say again that a cell runs and waits for a job.

        A notebook server counts the time since a kernel's last message. A page that was opened after the cell
        had begun learns that the results will come (lab/kernels.js). The message belongs to no cell, so that
        no front end takes it for the start of one.
        """
        if not self.managed or time.monotonic() - self._busy_at < _BUSY_AGAIN_S:
            return
        self._busy_at = time.monotonic()
        topic = f"kernel.{self._kernel.ident}.status".encode()
        content = {"execution_state": "busy", "minicluster": {"job": job_id, "made": made}}
        self._kernel.session.send(self._kernel.iopub_socket, "status", content, ident=topic)


class StopRequests:
    """The person's wish to stop. Both ways to tell it may be called from any thread and any signal."""

    def __init__(self, kernel: NotebookKernel) -> None:
        self.kernel = kernel
        self.count = 0
        self._asked = False
        self._interrupted_at: float | None = None

    def ask(self) -> None:
        """Take what only a person does: the Stop button."""
        self.count += 1
        self._asked = True

    def interrupt(self) -> None:
        """Take an interrupt, which may be the first sign of the kernel's end.

        It may be taken after the request that it was sent before: that one has a thread of its own.
        """
        self.count += 1
        if self._interrupted_at is None and self.kernel.managed:
            self._interrupted_at = time.monotonic()
        else:
            self._asked = True

    @property
    def certain(self) -> bool:
        """Whether a person asked."""
        if self._asked or self._interrupted_at is None:
            return self._asked
        return not self.kernel.ends and time.monotonic() - self._interrupted_at >= _ENDS_WITHIN_S


@contextmanager
def interrupts_go_to(interrupt: Callable[[], None]) -> Iterator[None]:
    """Let the kernel's interrupt (Ctrl-C) be taken instead of breaking into the work."""
    if threading.current_thread() is not threading.main_thread():
        # Signals are the main thread's; a cell in a subshell has the Stop button.
        yield
        return
    before = signal.signal(signal.SIGINT, lambda *_: interrupt())
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
