"""How many connections one user or task holds open, and how much waits to be sent on them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator
from contextlib import contextmanager

from minicluster_hub.handlers.errors import too_many


class PendingTooMuch(Exception):
    """One user's readers, together, do not read what they asked for."""


class OpenStreams:
    """Of one service, by who holds them."""

    def __init__(self) -> None:
        self._open: Counter[Hashable] = Counter()
        self._pending: Counter[Hashable] = Counter()

    @contextmanager
    def one_more(self, key: Hashable, most: int, what: str) -> Iterator[None]:
        """Hold one more. Raises ApiError (429) for the newest, or two readers would cut each other."""
        if self._open[key] >= most:
            message = f"{most} {what} are open already"
            raise too_many("too_many_streams", message, "close some pages or panels, or wait", wait_s=5.0)
        with _counted(self._open, key, 1):
            yield

    @contextmanager
    def sending(self, key: Hashable, size_bytes: int, most_bytes: int) -> Iterator[None]:
        """Send so many bytes. Raises PendingTooMuch; a single piece is never too much."""
        pending = self._pending[key]
        if pending and pending + size_bytes > most_bytes:
            raise PendingTooMuch
        with _counted(self._pending, key, size_bytes):
            yield


@contextmanager
def _counted(counts: Counter[Hashable], key: Hashable, number: int) -> Iterator[None]:
    counts[key] += number
    try:
        yield
    finally:
        counts[key] -= number
        if not counts[key]:
            del counts[key]
