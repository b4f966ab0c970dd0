"""What a replica's process and that of its HTTP server both see: whether it drains, and its open requests."""

from __future__ import annotations

import multiprocessing


class SharedState:
    """Made before the server's process is forked. Only that process counts, and only the other one drains.

    There are no locks: a process that is killed would leave them locked.
    """

    def __init__(self) -> None:
        context = multiprocessing.get_context("fork")
        self._draining = context.RawValue("b", 0)
        self._open = context.RawValue("i", 0)
        self._waiting = context.RawValue("i", 0)
        self._answered_at = context.RawValue("d", 0.0)

    @property
    def draining(self) -> bool:
        return bool(self._draining.value)

    @property
    def open_requests(self) -> int:
        return self._open.value

    def drain(self) -> None:
        """Take no more requests from now on."""
        self._draining.value = 1

    def begun(self) -> None:
        self._open.value += 1

    def ended(self) -> None:
        self._open.value -= 1

    def asked(self, now: float) -> None:
        """Count a request that waits for the model. now: of time.monotonic(), which all processes share."""
        if not self._waiting.value:
            self._answered_at.value = now
        self._waiting.value += 1

    def answered(self, now: float) -> None:
        self._answered_at.value = now
        self._waiting.value -= 1

    def silent_s(self, now: float) -> float:
        """Return for how long the model has answered nothing, while requests wait for it."""
        return now - self._answered_at.value if self._waiting.value else 0.0
