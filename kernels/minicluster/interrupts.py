"""Distinguishes a user's interrupt, which stops the job, from a kernel shutdown, which does not.

Before a shutdown or restart, a kernel manager interrupts the kernel, then sends the shutdown request.
Another thread receives that request while the cell still runs. An interrupt is the user's if no shutdown
request follows shortly, or if another interrupt follows: only the last one before the request is the
manager's.
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


class RunningKernel:
    """The notebook's kernel, or IPython in a terminal."""

    def __init__(self, shell: Any) -> None:
        self._shell = shell
        self._kernel: Any = getattr(shell, "kernel", None)
        self._busy_at = time.monotonic()

    @property
    def managed(self) -> bool:
        """Whether a kernel manager controls this process."""
        return self._kernel is not None

    @property
    def ends(self) -> bool:
        """Whether a shutdown or restart of the kernel was requested."""
        return self.managed and bool(self._shell.exit_now)

    def stay_busy(self, job_id: int, made: float) -> None:
        """Report again that a cell waits for a job.

        This prevents idle culling of the notebook server. Pages opened later learn from it that results will
        arrive (lab/kernels.js). The message has no parent, so no front end reads it as the start of a cell.
        """
        if not self.managed or time.monotonic() - self._busy_at < _BUSY_AGAIN_S:
            return
        self._busy_at = time.monotonic()
        topic = f"kernel.{self._kernel.ident}.status".encode()
        content = {"execution_state": "busy", "minicluster": {"job": job_id, "made": made}}
        self._kernel.session.send(self._kernel.iopub_socket, "status", content, ident=topic)


class StopRequests:
    """A user's stop requests. Any thread or signal handler may call `ask` and `interrupt`."""

    def __init__(self, kernel: RunningKernel) -> None:
        self.kernel = kernel
        self.count = 0
        self._asked = False
        self._interrupted_at: float | None = None

    def ask(self) -> None:
        """Record a press of the Stop button, which only a user can make."""
        self.count += 1
        self._asked = True

    def interrupt(self) -> None:
        """Record an interrupt; it may announce the kernel's shutdown.

        Another thread may receive the shutdown request before this interrupt arrives.
        """
        self.count += 1
        if self._interrupted_at is None and self.kernel.managed:
            self._interrupted_at = time.monotonic()
        else:
            self._asked = True

    @property
    def certain(self) -> bool:
        """Whether the user has certainly asked to stop."""
        if self._asked or self._interrupted_at is None:
            return self._asked
        return not self.kernel.ends and time.monotonic() - self._interrupted_at >= _ENDS_WITHIN_S


@contextmanager
def interrupts_go_to(interrupt: Callable[[], None]) -> Iterator[None]:
    """Call a function on the kernel's interrupt (Ctrl-C) instead of raising KeyboardInterrupt."""
    if threading.current_thread() is not threading.main_thread():
        # Only the main thread can handle signals; a cell in a subshell is stopped by the Stop button.
        yield
        return
    before = signal.signal(signal.SIGINT, lambda *_: interrupt())
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
