"""Waits for signals without polling: each signal wakes a select, and none is lost."""

from __future__ import annotations

import select
import signal
import socket
from types import FrameType, TracebackType

END = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP})
_WATCHED = END | {signal.SIGCHLD}


class Signals:
    """Inside the `with` block, `wait` returns the end signals and SIGCHLD; they have no other effect."""

    def __init__(self) -> None:
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)

    def __enter__(self) -> Signals:
        self._wakeup_before = signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        self._handlers_before = {number: signal.signal(number, _nothing) for number in _WATCHED}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._handlers_before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._wakeup_before)
        self._reader.close()
        self._writer.close()

    def wait(self, timeout_s: float | None, also_fd: int | None = None) -> set[int]:
        """Return the signals that came; none if `timeout_s` passed or `also_fd` became readable."""
        watched = [self._reader.fileno(), *([] if also_fd is None else [also_fd])]
        readable, _, _ = select.select(watched, [], [], timeout_s)
        return set(self._reader.recv(4096)) if self._reader.fileno() in readable else set()


def _nothing(number: int, frame: FrameType | None) -> None:
    """Do nothing: the wake-up file descriptor reports the signal."""
