"""How many connections one user or task holds open, and how much waits to be sent on them."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from weakref import WeakValueDictionary

from minicluster_hub.web.errors import too_many


class PendingTooMuch(Exception):
    """One user's readers, together, do not read what they asked for."""


_RESTS = 4
"""So many times as long as it took to make what is sent, a user's streams rest together."""
_AT_ONCE_S, _MOST_REST_S = 1.0, 5.0
"""Rests up to the first are not taken: who gets little waits for nothing. None is longer than the second."""


class OpenStreams:
    """Of one service, by who holds them."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._open: Counter[Hashable] = Counter()
        self._pending: Counter[Hashable] = Counter()
        self._rest_until: dict[Hashable, float] = {}
        self._lines: WeakValueDictionary[Hashable, asyncio.Lock] = WeakValueDictionary()

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

    def worked(self, key: Hashable, seconds: float) -> None:
        """Take it that so long was worked for one of a user's streams, on the one event loop."""
        now = self._clock()
        rest_until = max(now, self._rest_until.get(key, 0.0)) + _RESTS * seconds
        self._rest_until[key] = min(rest_until, now + _AT_ONCE_S + _MOST_REST_S)

    async def turn(self, key: Hashable) -> None:
        """Wait until a user's streams have rested: in a line, since hundreds that wake at once cost, too."""
        line = self._lines.get(key)
        if line is None and not self.rest_s(key):
            return
        line = line or self._lines.setdefault(key, asyncio.Lock())
        async with line:
            await asyncio.sleep(self.rest_s(key))

    def rest_s(self, key: Hashable) -> float:
        """Return how long all streams of a user still rest."""
        left_s = self._rest_until.get(key, 0.0) - self._clock()
        if left_s <= 0.0:
            self._rest_until.pop(key, None)
        return max(0.0, left_s - _AT_ONCE_S)


@contextmanager
def _counted(counts: Counter[Hashable], key: Hashable, number: int) -> Iterator[None]:
    counts[key] += number
    try:
        yield
    finally:
        counts[key] -= number
        if not counts[key]:
            del counts[key]
