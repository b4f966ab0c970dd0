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
